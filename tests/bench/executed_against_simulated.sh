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

records=()
for i in "${!shapes[@]}"; do
  read -ra words <<<"${shapes[i]}"
  # A name that says which of the shapes above it is.
  printf -v name '%02d' "$((i + 1))"
  curves=$scratch/curves-$name.json
  "$program" measure "${common[@]}" "${words[@]}" --out "$scratch/measured-$name" --processor-time \
    --budget 30s >"$scratch/log" 2>&1 &&
    "$program" calibrate --ops "$scratch/measured-$name" --gpu local-cpu --out "$curves" \
      >>"$scratch/log" 2>&1 &&
    "$program" run "${common[@]}" "${words[@]}" --steps 7 --calibration "$curves" \
      --compare --record "$scratch/shape-$name.json" >>"$scratch/log" 2>&1 || {
    echo "failed: ${shapes[i]%" $llama"}"
    tail -n 5 "$scratch/log"
    exit 1
  }
  echo "shape-$name.json: ${shapes[i]%" $llama"}"
  records+=(--executed "shape-$name.json")
done
echo
program=$(realpath "$program")
cd "$scratch" && "$program" validate "${records[@]}"
