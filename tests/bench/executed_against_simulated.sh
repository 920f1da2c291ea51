#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# executed_against_simulated.sh PROGRAM: how far is a simulated step off the executed one, on this
# machine?  For ten shapes on one and two ranks: measure, calibrate, run --compare.  A benchmark: it
# fails only where one of them does.  What is computed is measured by processor time, and the step
# is compared with both the time that went by and the time for which a rank had a processor, which
# differ by what else the machine does.
set -u
program=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

common=(--cluster local-cpu --global-batch 4)
llama='--vocab 1000 --swiglu --rms-norm --rope --untied --no-bias --no-dropout'
shapes=(
  "--ranks 1 --zero 0 --seq 64 --layers 2 --hidden 64 --heads 4 --ffn 128 $llama"
  "--ranks 1 --zero 0 --seq 128 --layers 2 --hidden 128 --heads 4 --kv-heads 2 --ffn 256 $llama"
  "--ranks 1 --zero 0 --seq 128 --layers 1 --hidden 256 --heads 4 --ffn 1024 $llama"
  '--ranks 1 --zero 0 --seq 64 --layers 4 --hidden 128 --heads 4 --vocab 1000 --no-dropout'
  '--ranks 1 --zero 0 --seq 64 --model tiny-moe'
  "--ranks 2 --tp 2 --no-sp --seq 128 --layers 2 --hidden 128 --heads 4 --ffn 256 $llama"
  "--ranks 2 --pp 2 --seq 128 --layers 4 --hidden 128 --heads 4 --ffn 256 $llama"
  "--ranks 2 --dp 2 --zero 1 --seq 128 --layers 2 --hidden 128 --heads 4 --ffn 512 $llama"
  "--ranks 2 --cp 2 --seq 128 --layers 2 --hidden 128 --heads 4 --ffn 256 $llama"
  '--ranks 2 --dp 2 --ep 2 --seq 64 --model tiny-moe')

# field NAME: of the whole step, the first in "simulated".
field() {
  awk -v name="\"$1\":" '/"simulated":/ { inside = 1 }
    inside && $1 == name { sub(/,$/, "", $2); print $2; exit }' "$scratch/run.json"
}

median() { sort -g | awk '{ v[NR] = $1 } END { if (NR) printf "%.1f%%", 100 * (NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2) }'; }

printf '%-78s %9s %9s %9s %7s %7s\n' shape simulated executed processor ratio 'of proc.'
for shape in "${shapes[@]}"; do
  read -ra words <<<"$shape"
  shape=${shape%" $llama"}
  rm -rf "$scratch/measured"
  "$program" measure "${common[@]}" "${words[@]}" --out "$scratch/measured" --processor-time \
    --budget 30s >"$scratch/log" 2>&1 &&
    "$program" calibrate --ops "$scratch/measured" --gpu local-cpu --out "$scratch/cpu.json" \
      >>"$scratch/log" 2>&1 &&
    "$program" run "${common[@]}" "${words[@]}" --steps 7 --calibration "$scratch/cpu.json" \
      --compare --json >"$scratch/run.json" 2>>"$scratch/log" || {
    echo "failed: $shape"
    tail -n 5 "$scratch/log"
    exit 1
  }
  awk -v shape="$shape" -v p="$(field predicted_s)" -v m="$(field measured_s)" \
    -v c="$(field processor_s)" -v errors="$scratch/wall" -v of_processor="$scratch/processor" '
    function off(ratio) { return ratio > 1 ? ratio - 1 : 1 - ratio }
    BEGIN {
      printf "%-78s %6.1f ms %6.1f ms %6.1f ms %7.2f %7.2f\n", shape, 1e3 * p, 1e3 * m, 1e3 * c,
        p / m, p / c
      print off(p / m) >>errors
      print off(p / c) >>of_processor
    }'
done
printf 'median error of the simulated step: %s of the time that went by, %s of the processor time\n' \
  "$(median <"$scratch/wall")" "$(median <"$scratch/processor")"
