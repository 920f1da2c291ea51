#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# plan_mpi_test.sh PROGRAM: `plan` under mpirun gives the bytes of one process, whatever the number of
# ranks; what is wrong is said once.
set -u
program=$1
status=0
scratch=$(readlink -f "$(mktemp -d)")
trap 'rm -rf "$scratch"' EXIT
# mpirun and its libraries keep what they have until the end.
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0

expect() {
  [[ $2 == "$3" ]] && return
  printf 'FAILED: %s\nexpected:\n%s\ngot:\n%s\n' "$1" "$3" "$2"
  status=1
}

as_root=()
[[ $(id -u) == 0 ]] && as_root=(--allow-run-as-root)
ranks() {
  local n=$1
  shift
  mpirun --oversubscribe "${as_root[@]}" --mca plm isolated -n "$n" "$program" "$@"
}
question=(plan --model llama-3.1-8b --cluster dgx-h100 --global-batch 32 --seq 4096 --json)
several=("${question[@]}" --nodes '1|2' --choose 'precision=bf16|fp8')
question+=(--nodes 2)

"$program" "${question[@]}" >"$scratch/alone" 2>"$scratch/err"
expect 'alone, code' $? 0
for n in 1 2 3 4; do
  ranks "$n" "${question[@]}" --out "$scratch/job.$n.json" >"$scratch/shared" 2>"$scratch/err"
  expect "$n ranks, code" $? 0
  expect "$n ranks, bytes" "$(sed '/"timing"/,$d' "$scratch/shared" | cksum)" \
    "$(sed '/"timing"/,$d' "$scratch/alone" | cksum)"
  expect "$n ranks, the job file" "$(cksum <"$scratch/job.$n.json")" "$(cksum <"$scratch/job.1.json")"
done

# And of several questions, and with recomputation by rank.
several+=(--recompute-by-rank)
"$program" "${several[@]}" >"$scratch/alone" 2>"$scratch/err"
expect 'choices alone, code' $? 0
ranks 3 "${several[@]}" >"$scratch/shared" 2>"$scratch/err"
expect 'choices, code' $? 0
expect 'choices, bytes' "$(sed '/"timing"/,$d' "$scratch/shared" | cksum)" \
  "$(sed '/"timing"/,$d' "$scratch/alone" | cksum)"

ranks 2 "${question[@]}" --top 0 --memory-margin 200% >"$scratch/out" 2>"$scratch/err"
expect 'bad input, code' $? 2
expect 'bad input, stdout' "$(cat "$scratch/out")" ''
expect 'bad input, every mistake once' "$(grep '^millwright' "$scratch/err")" \
  'millwright: --top: expected an integer between 1 and 10000, got "0"
millwright: --memory-margin: expected a share from 0% to 99%, got "200%"'

exit "$status"
