#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Does check.sh see each kind of wrong include, and none in a tree without one?
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
status=0

# file PATH: its text comes from standard input.
file() {
  mkdir -p "$tree/$(dirname "$1")"
  cat >"$tree/$1"
}

# expect WHAT CODE OUTPUT
expect() {
  local got code
  got=$(bash "$here/check.sh" "$tree")
  code=$?
  if [[ $got != "$3" || $code != "$2" ]]; then
    printf 'FAILED: %s\nexpected exit %s and:\n%s\ngot exit %s and:\n%s\n' \
      "$1" "$2" "$3" "$code" "$got"
    status=1
  fi
}

file core/units.h <<<'#include <cmath>'
file core/config_io.cc <<<'#include <nlohmann/json.hpp>'
file topologies/cluster.cc <<'END'
#include "topologies/cluster.h"

#include <sys/stat.h>
#include <boost/graph/adjacency_list.hpp>
#include <fmt/format.h>
#include "core/units.h"
END
file planner/search.cc <<'END'
#include "cost_models/layer.h"
// #include "cli/plan.h" would be wrong
END
file runtime/execute.cc <<<'#include "sim/task_graph.h"'
file cli/main.cc <<<'#include <CLI/CLI.hpp>'
file tests/core/units_test.cc <<'END'
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include "cli/main.h"
END
expect 'nothing is wrong' 0 ''

file core/units.h <<'END'
#include <cmath>
#  include "topologies/cluster.h"
#include <fmt/format.h>
END
file cost_models/layer.cc <<'END'
#include "topologies/cluster.h"
#include "layer.h"
#include "elsewhere/layer.h"
#include <nlohmann/json.hpp>
#include <absl/strings/str_cat.h>
END
file planner/presets/search.cc <<<'#include <boost/graph/adjacency_list.hpp>'
file report/table.cc <<<'#include "cli/table.h"'
file runtime/execute.cc <<<'#include "sim/simulate.h"'
file tests/bench/search.h <<<'#include <gtest/gtest.h>'
expect 'everything is wrong' 1 \
'core/units.h:2: core must not include topologies, as "topologies/cluster.h" does
core/units.h:3: <fmt/format.h> does not belong in this file
cost_models/layer.cc:1: cost_models must not include topologies, as "topologies/cluster.h" does
cost_models/layer.cc:2: "layer.h" does not start with one of our folders
cost_models/layer.cc:3: "elsewhere/layer.h" does not start with one of our folders
cost_models/layer.cc:4: <nlohmann/json.hpp> does not belong in this file
cost_models/layer.cc:5: <absl/strings/str_cat.h> is of a library that has no place yet
planner/presets/search.cc:1: <boost/graph/adjacency_list.hpp> does not belong in this file
report/table.cc:1: report must not include cli, as "cli/table.h" does
runtime/execute.cc:1: runtime must not include "sim/simulate.h"'

rm -rf "${tree:?}"/*
expect 'no folder at all' 2 "no source folder in $tree"

exit "$status"
