#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# run_test.sh PROGRAM: `run` with ranks as processes: a step that verifies, one whose rank is killed,
# one that is interrupted, and ranks that somebody else's mpirun started.  Nothing may be left
# behind: no process, no file.
set -u
program=$1
status=0
scratch=$(readlink -f "$(mktemp -d)")
trap 'rm -rf "$scratch"' EXIT
# mpirun and its libraries keep what they have until the end.
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0

shape=(--layers 2 --hidden 16 --heads 4 --kv-heads 2 --ffn 24 --vocab 301 --swiglu --rms-norm --rope
  --untied --no-bias --no-dropout --cluster local-cpu --global-batch 4 --seq 16)

expect() {
  [[ $2 == "$3" ]] && return
  printf 'FAILED: %s\nexpected:\n%s\ngot:\n%s\n' "$1" "$3" "$2"
  status=1
}

# Folders of ours, whoever else runs here at the same time.
folders() { find /dev/shm /tmp -maxdepth 1 -name 'millwright.??????' -newer "$scratch/start" 2>/dev/null; }
# Ranks that are children of what this script started carry this in their arguments.
seed=$((RANDOM * 32768 + RANDOM + 2))
ranks() {
  local process words
  for process in /proc/[0-9]*; do
    { words=$(tr '\0' ' ' <"$process/cmdline"); } 2>/dev/null
    [[ $words == *millwright-rank\ * && $words == *"--seed $seed "* && $words != mpirun* ]] &&
      echo "${process#/proc/}"
  done
}

touch "$scratch/start"
sleep 0.01

"$program" run "${shape[@]}" --ranks 2 --tp 2 --verify --seed "$seed" >"$scratch/out" 2>"$scratch/err"
expect 'two ranks, code' $? 0
expect 'two ranks, stderr' "$(cat "$scratch/err")" ''
expect 'two ranks, verified' "$(grep -o 'Equal to the dense reference' "$scratch/out")" \
  'Equal to the dense reference'
expect 'two ranks, agreements' "$(grep -c ' ok ' "$scratch/out")" 3

"$program" run "${shape[@]}" --ranks 2 --tp 2 --json --seed "$seed" >"$scratch/mpi" 2>&1
"$program" run "${shape[@]}" --ranks 2 --tp 2 --json --seed "$seed" --backend threads >"$scratch/threads" 2>&1
# All but how it was run and how long it took.
expect 'processes and threads come to the same bytes' \
  "$(sed '/"backend"/d; /"timing"/,$d' "$scratch/mpi")" \
  "$(sed '/"backend"/d; /"timing"/,$d' "$scratch/threads")"

# A rank is killed in the middle of a run that would take hours.
"$program" run "${shape[@]}" --ranks 2 --tp 2 --steps 1000000 --seed "$seed" \
  >"$scratch/out" 2>"$scratch/err" &
run=$!
for _ in $(seq 200); do
  [[ $(ranks | wc -l) -ge 2 ]] && break
  sleep 0.05
done
sleep 0.3
victim=$(ranks | tail -n 1)
kill -KILL "$victim"
wait "$run"
expect 'a killed rank, code' $? 4
expect 'a killed rank, stdout' "$(cat "$scratch/out")" ''
expect 'a killed rank, stderr' "$(sed 's/rank [01]/rank R/' "$scratch/err")" \
  'millwright: rank R was ended by signal 9 (Killed), and with it the run'
expect 'a killed rank leaves no process' "$(ranks)" ''

"$program" run "${shape[@]}" --ranks 2 --tp 2 --steps 1000000 --seed "$seed" \
  >"$scratch/out" 2>"$scratch/err" &
run=$!
for _ in $(seq 200); do
  [[ $(ranks | wc -l) -ge 2 ]] && break
  sleep 0.05
done
kill -TERM "$run"
wait "$run"
expect 'an interrupted run, code' $? 143
expect 'an interrupted run, stderr' "$(cat "$scratch/err")" \
  'millwright: interrupted; the ranks were ended'
expect 'an interrupted run leaves no process' "$(ranks)" ''

as_root=()
[[ $(id -u) == 0 ]] && as_root=(--allow-run-as-root)
own=(mpirun --oversubscribe "${as_root[@]}" --mca plm isolated)
"${own[@]}" -n 2 "$program" run "${shape[@]}" --ranks 2 --tp 2 --verify --seed "$seed" \
  >"$scratch/out" 2>"$scratch/err"
expect 'under mpirun, code' $? 0
expect 'under mpirun, verified' "$(grep -c 'Equal to the dense reference' "$scratch/out")" 1

"${own[@]}" -n 3 "$program" run "${shape[@]}" --ranks 2 --tp 2 --seed "$seed" \
  >"$scratch/out" 2>"$scratch/err"
expect 'a wrong number of ranks, code' $? 2
expect 'a wrong number of ranks, stderr' "$(grep '^millwright' "$scratch/err" | sort -u)" \
  'millwright: the plan has 2 ranks, and 3 were started'

# 2 where the program was built without CUDA.
if [[ ! -e /dev/nvidiactl ]]; then
  "$program" run "${shape[@]}" --ranks 2 --tp 2 --backend cuda >"$scratch/out" 2>"$scratch/err"
  code=$?
  expect 'no GPU, code' "$((code == 2 || code == 4))" 1
  expect 'no GPU, stdout' "$(cat "$scratch/out")" ''
  expect 'no GPU, one message' "$(grep -c '^millwright: ' "$scratch/err")/$(wc -l <"$scratch/err")" 1/1
fi

"$program" measure "${shape[@]}" --ranks 2 --tp 2 --quick --budget 20s --seed "$seed" \
  --out "$scratch/measured" >"$scratch/out" 2>"$scratch/err"
expect 'measure, code' $? 0
expect 'measure, stderr' "$(cat "$scratch/err")" ''
expect 'measure, tables' "$(cd "$scratch/measured" && echo *)" \
  'attention.csv collective_mpi.csv gemm.csv grouped_gemm.csv memory_bound.csv'

# Interrupted, it keeps what it has: whole tables.
"$program" measure --ranks 2 --budget 1000s --seed "$seed" --out "$scratch/kept" \
  >"$scratch/out" 2>"$scratch/err" &
run=$!
for _ in $(seq 400); do
  [[ -s $scratch/kept/gemm.csv ]] && break
  sleep 0.05
done
kill -TERM "$run"
wait "$run"
expect 'interrupted measuring, code' $? 143
expect 'interrupted measuring, stderr' "$(cat "$scratch/err")" \
  "millwright: interrupted; the ranks were ended
millwright: what was measured until then is in $scratch/kept"
expect 'interrupted measuring leaves no process' "$(ranks)" ''
expect 'interrupted measuring leaves tables alone' \
  "$(find "$scratch/kept" -type f ! -name '*.csv')" ''
expect 'interrupted measuring leaves whole rows' \
  "$(awk -F, 'NR == 1 { n = NF } $7 !~ /^"millwright-/ && NR > 1' "$scratch/kept/gemm.csv")" ''

expect 'no folder is left' "$(folders)" ''
exit "$status"
