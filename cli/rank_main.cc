// SPDX-License-Identifier: Apache-2.0
//
// One rank of `millwright run` or `measure`, as mpirun starts it: the same words, and MPI.

#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "core/config_io.h"
#include "runtime/backend.h"
#include "runtime/mpi_communicator.h"

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + (argc > 0 ? 1 : 0), argv + argc);
  millwright::Console console{.out = std::cout, .err = std::cerr};
  if (const char* columns = std::getenv("COLUMNS"); columns != nullptr) {
    if (const int width = std::atoi(columns); width > 0) console.style.width = width;
  }
  const auto communicator = millwright::MakeMpiCommunicator();
  // Whatever ends one rank ends them all: the others may be waiting for it.
  int code = 3;
  std::string why;
  try {
    const int answer = millwright::RankCommand(args, console, *communicator);
    std::cout.flush();
    return answer;
  } catch (const millwright::ConfigError& error) {
    code = 2;
    why = error.what();
  } catch (const millwright::GpuError& error) {
    code = 4;
    why = error.what();
  } catch (const std::bad_alloc&) {
    code = 2;
    why = "this machine has too little memory for the ranks";
  } catch (const std::exception& error) {
    why = error.what();
  }
  std::cerr << "millwright: " + why + "\n" << std::flush;
  millwright::AbortMpi(code);
}
