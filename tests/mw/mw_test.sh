#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The mw script in a tree of its own, on a pretended machine: PATH holds the few tools every
# Debian has, and stand-ins for the rest that write down how they were called.
set -u
source_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
scratch=$(readlink -f "$(mktemp -d)")
trap 'rm -rf "$scratch"' EXIT
status=0
tree=$scratch/tree
calls=$scratch/calls

mkdir -p "$scratch/bin" "$scratch/elsewhere" "$tree"
for tool in bash cat env find flock grep head mkdir mv readlink rm sed sleep tail tee touch tr wc; do
  ln -s "$(command -v "$tool")" "$scratch/bin/$tool"
done

# stand_in NAME: its script comes from standard input.
stand_in() {
  {
    echo "#!$(command -v bash)"
    echo "echo \"$1 \$*\" >>'$calls'"
    cat
  } >"$scratch/bin/$1"
  chmod +x "$scratch/bin/$1"
}

new_tree() {
  rm -rf "$tree"
  for folder in core topologies cost_models sim planner runtime validate report cli; do
    mkdir -p "$tree/$folder"
    touch "$tree/$folder/source.cc"
  done
  touch "$tree/CMakeLists.txt"
  cp "$source_root/mw" "$tree/mw"
}

all_packages="g++ cmake ninja-build libboost-graph-dev libeigen3-dev nlohmann-json3-dev libfmt-dev libcli11-dev node-d3 libopenmpi-dev openmpi-bin"

# A machine on which all is well; a case replaces what it is about.
new_machine() {
  stand_in nproc <<<'echo 2'
  stand_in id <<<'echo 1000'
  stand_in dpkg-query <<END
for package in $all_packages libgtest-dev libgmock-dev ccache; do
  printf 'installed:%s ' \$package
done
END
  stand_in cmake <<'END'
while [[ $1 != -B ]]; do shift; done
echo "CMAKE_HOME_DIRECTORY:INTERNAL=$(readlink -f "$2/..")" >"$2/CMakeCache.txt"
touch "$2/build.ninja"
END
  stand_in ninja <<'END'
echo '[1/1] Linking millwright'
cat >"$2/millwright" <<'PROGRAM'
#!/usr/bin/env bash
printf '%s|' "${PWD##*/}" "$@"
echo
exit 7
PROGRAM
env -i /bin/chmod +x "$2/millwright"
END
  rm -f "$scratch"/bin/{sudo,apt-get,ctest}
}

# run ARGUMENT...: mw, called from another folder.  Leaves code, stdout, stderr and called.
run() {
  : >"$calls"
  (cd "$scratch/elsewhere" &&
    timeout 60 env PATH="$scratch/bin" "$tree/mw" "$@" >"$scratch/out" 2>"$scratch/err")
  code=$?
  stdout=$(cat "$scratch/out")
  stderr=$(cat "$scratch/err")
  called=$(grep -E '^(cmake|ninja|apt-get|sudo|ctest)' "$calls" | sed "s|$scratch/||g")
}

expect() {
  [[ $2 == "$3" ]] && return
  printf 'FAILED: %s\nexpected:\n%s\ngot:\n%s\n' "$1" "$3" "$2"
  status=1
}

new_tree
new_machine
run plan --model 'two words'
expect 'first call, code' "$code" 7
expect 'first call, stdout' "$stdout" 'elsewhere|plan|--model|two words|'
expect 'first call, stderr' "$stderr" 'mw: building (first time, about 1 minute)...'
expect 'first call, calls' "$called" \
'cmake -S tree -B tree/build -G Ninja -DMILLWRIGHT_TESTS=OFF
ninja -C tree/build millwright'

run plan
expect 'second call, code' "$code" 7
expect 'second call, stdout' "$stdout" 'elsewhere|plan|'
expect 'second call, stderr' "$stderr" ''
expect 'second call starts nothing' "$(cat "$calls")" ''

touch "$tree/core/source.cc"
run plan
expect 'a changed source, stderr' "$stderr" ''
expect 'a changed source, calls' "$called" 'ninja -C tree/build millwright'

rm "$tree/core/source.cc"
run plan
expect 'a removed source' "$called" 'ninja -C tree/build millwright'

mv "$tree" "$tree.new"
tree=$tree.new
touch "$tree/core/source.cc"
run plan
expect 'a moved tree, stderr' "$stderr" \
'mw: build/ is of another source tree; starting it anew
mw: building (first time, about 1 minute)...'
expect 'a moved tree, calls' "$called" \
'cmake -S tree.new -B tree.new/build -G Ninja -DMILLWRIGHT_TESTS=OFF
ninja -C tree.new/build millwright'
rm -rf "$tree"
tree=$scratch/tree

new_tree
stand_in ninja <<'END'
echo '[1/2] Building core/source.cc'
echo 'source.cc:1: error: no'
exit 1
END
run plan
expect 'a failed build, code' "$code" 3
expect 'a failed build, stdout' "$stdout" ''
expect 'a failed build, stderr' "$stderr" \
'mw: building (first time, about 1 minute)...
source.cc:1: error: no
mw: the build failed (build/build.log)'
new_machine
run plan
expect 'mended, code' "$code" 7
expect 'mended, calls' "$called" 'ninja -C tree/build millwright'

# As far as the program goes a clone on a machine with nothing and no right to install.
new_tree
new_machine
rm "$scratch/bin/cmake" "$scratch/bin/ninja"
stand_in dpkg-query <<<'printf "installed:g++ not-installed:cmake "; exit 1'
run plan
wanted='cmake ninja-build libboost-graph-dev libeigen3-dev nlohmann-json3-dev libfmt-dev libcli11-dev node-d3 libopenmpi-dev openmpi-bin'
expect 'not root, code' "$code" 2
expect 'not root, stdout' "$stdout" ''
expect 'not root, stderr' "$stderr" \
"mw: these packages are missing: $wanted
mw: install them, then call mw again:
mw:   sudo apt-get install -y --no-install-recommends $wanted"
expect 'not root, nothing was tried' "$called" ''

rm "$scratch/bin/dpkg-query" "$scratch/bin/nproc"
run plan
expect 'not a Debian, code' "$code" 2
expect 'not a Debian, stderr' "$stderr" \
'mw: please install what your system calls these Debian packages: g++ cmake ninja-build'

# Root installs; so does who can become root without being asked.
new_machine
stand_in dpkg-query <<<'printf "installed:g++ not-installed:libfmt-dev "; exit 1'
stand_in id <<<'echo 0'
stand_in apt-get <<<'[[ $* != *update* ]]'
run plan
wanted='libboost-graph-dev libeigen3-dev nlohmann-json3-dev libfmt-dev libcli11-dev node-d3 libopenmpi-dev openmpi-bin'
expect 'root, code' "$code" 7
expect 'root, stderr' "$stderr" \
"mw: installing $wanted (log: build/install.log)...
mw: apt-get update failed; trying without
mw: building (first time, about 1 minute)..."
expect 'root, calls' "$(grep apt-get <<<"$called")" \
"apt-get -q -o DPkg::Lock::Timeout=300 update
apt-get -q -o DPkg::Lock::Timeout=300 install -y --no-install-recommends $wanted"

new_tree
stand_in id <<<'echo 1000'
# shellcheck disable=SC2016 # for the stand-in to expand
stand_in sudo <<<'[[ $2 == true ]] || "${@:2}"'
run plan
expect 'sudo, code' "$code" 7
expect 'sudo, calls' "$(grep -c '^sudo -n env DEBIAN_FRONTEND=noninteractive apt-get' "$calls")" 2

new_tree
stand_in apt-get <<<'[[ $* == *update* ]] || echo "E: Unable to locate package"; exit 100'
run plan
expect 'nothing to install from, code' "$code" 2
expect 'nothing to install from, stderr' "$stderr" \
"mw: installing $wanted (log: build/install.log)...
mw: apt-get update failed; trying without
E: Unable to locate package
mw: apt-get could not install: $wanted"

# Two at once: one builds, the other waits and then has nothing left to do.
new_tree
new_machine
mv "$scratch/bin/ninja" "$scratch/bin/ninja_at_once"
stand_in ninja <<END
echo one >>'$scratch/builds'
sleep 1
ninja_at_once "\$@"
END
(cd "$scratch/elsewhere" && PATH=$scratch/bin "$tree/mw" plan >/dev/null 2>&1) &
until [[ -f $scratch/builds ]]; do sleep 0.02; done
run plan
wait
expect 'two at once, code' "$code" 7
expect 'two at once, stderr' "$stderr" 'mw: waiting for another mw that is building...'
expect 'two at once, builds' "$(cat "$scratch/builds")" one

# The closing line, from what ctest says and not from its exit code alone.
new_tree
new_machine
junit() {
  stand_in ctest <<END
while [[ \$1 != --output-junit ]]; do shift; done
printf '<testsuite name="(empty)"\n\ttests="$1"\n\tfailures="$2"\n\tdisabled="0"\n\tskipped="$3"\n' >"\$2"
echo '>' >>"\$2"
echo '1/9 Test #1: core.Units.Adds ....   Passed    0.01 sec'
exit $4
END
}
junit 9 0 2 0
run test -R planner
expect 'tests pass, code' "$code" 0
expect 'tests pass, stdout' "$stdout" '7 passed, 0 failed, 2 skipped'
expect 'tests pass, stderr' "$stderr" 'mw: building the tests...'
expect 'tests pass, calls' "$called" \
'cmake -S tree -B tree/build -G Ninja -DMILLWRIGHT_TESTS=ON
ninja -C tree/build all
ctest --test-dir tree/build --output-on-failure --no-tests=error -j 2 --output-junit tree/build/tests.xml -R planner'
junit 9 1 2 8
run test
expect 'a test fails, code' "$code" 1
expect 'a test fails, stdout' "$stdout" '6 passed, 1 failed, 2 skipped'
stand_in ctest <<<'exit 8'
run test
expect 'ctest does not run, code' "$code" 1
expect 'ctest does not run, stdout' "$stdout" '0 passed, 1 failed, 0 skipped'

run check --fast
expect 'a wrong flag, code' "$code" 2
expect 'a wrong flag, stderr' "$stderr" 'mw: check: expected nothing or --long, got --fast'

exit "$status"
