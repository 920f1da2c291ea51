#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# check.sh ROOT: does each folder include only folders below it, and does each third-party
# library stay in the files it belongs to?  Prints each line that does not as
# FILE:LINE: REASON and then exits 1.
set -u
cd "$1" || exit 2

folders='core topologies cost_models sim planner runtime validate report cli'
present=()
for folder in $folders tests; do
  [[ -d $folder ]] && present+=("$folder")
done
[[ ${#present[@]} -gt 0 ]] || { echo "no source folder in $1"; exit 2; }

find "${present[@]}" \( -name '*.h' -o -name '*.cc' -o -name '*.cu' \) -print0 | sort -z |
  xargs -0 -r awk -v folders="$folders" '
  BEGIN {
    # What each folder may include besides itself; docs/architecture.md draws it.
    below["core"] = ""
    below["topologies"] = "core"
    below["cost_models"] = "core"
    below["sim"] = "core topologies cost_models"
    below["planner"] = "core topologies cost_models sim"
    # The runtime executes the graph that is simulated; it must not ask the simulator.
    below["runtime"] = "core cost_models sim"
    forbidden["runtime", "sim/simulate.h"] = 1
    below["validate"] = "core topologies cost_models sim planner runtime"
    below["report"] = "core topologies cost_models sim planner runtime validate"
    below["cli"] = folders
    below["tests"] = folders

    # Third-party headers by how they start, and the files that may include them.
    home["nlohmann/"] = "^core/(config_io|json[a-z_]*|hf_config)\\.cc$|^report/[a-z_]+\\.cc$"
    home["boost/"] = "^topologies/[a-z_]+\\.cc$"
    home["CLI/"] = "^cli/[a-z_]+\\.cc$"
    home["fmt/"] = "\\.(cc|cu)$"
    home["Eigen/"] = "^(runtime|validate)/[a-z_]+\\.cc$"
    home["mpi.h"] = "^runtime/[a-z_]+\\.cc$"
    home["nccl.h"] = "^runtime/cuda/[a-z_]+\\.cc$"
    home["cu"] = "^runtime/cuda/[a-z_]+\\.(h|cc|cu)$"  # cuda*, cublas*, cudnn*, cub/
    home["gtest/"] = home["gmock/"] = home["benchmark/"] = "^tests/"
    # System headers that are not C++: anything else with a dot or a slash is a library that
    # has not been given a place yet.
    system_header = "^((sys|netinet|arpa)/[a-z]+|unistd|ucontext|fcntl|signal|poll|pthread|sched|netdb|dlfcn)\\.h$"
  }

  function complain(reason) {
    printf "%s:%d: %s\n", FILENAME, FNR, reason
    bad = 1
  }

  function listed(word, list) { return index(" " list " ", " " word " ") > 0 }

  /^[ \t]*#[ \t]*include[ \t]*"/ {
    split($0, part, "\"")
    path = part[2]
    from = FILENAME
    sub(/\/.*/, "", from)
    to = path
    sub(/\/.*/, "", to)
    if (path !~ /\// || !(to in below))
      complain("\"" path "\" does not start with one of our folders")
    else if (to != from && !listed(to, below[from]))
      complain(from " must not include " to ", as \"" path "\" does")
    else if ((from, path) in forbidden)
      complain(from " must not include \"" path "\"")
  }

  /^[ \t]*#[ \t]*include[ \t]*</ {
    split($0, part, /[<>]/)
    path = part[2]
    if (path !~ /[.\/]/ || path ~ system_header) next
    found = ""
    for (library in home)
      if (index(path, library) == 1) found = library
    if (found == "")
      complain("<" path "> is of a library that has no place yet")
    else if (FILENAME !~ home[found] && FILENAME !~ /^tests\/.*\.cc$/)
      complain("<" path "> does not belong in this file")
  }

  END { exit bad }
' && exit 0
exit 1
