#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# gpu_check.sh [PROGRAM]: on a machine with one GPU, is the GPU backend right, and how far is a layer
# from its prediction?  Builds Millwright for that GPU into build-gpu/, unless a program is given;
# then executes small models on the GPU and compares each with the dense reference in fp64, fp32 and
# bf16, times products, attention and what is bound by memory beside their predictions (a minute, kept
# in build-gpu/measured for calibrate), and times one transformer layer with the shapes that a rank has of Llama-3 70B under TP 8
# (8 of 64 query heads, 1 of 8 KV heads, 3584 of 28672 FFN columns, 8192 tokens), without its
# collectives.  The last table has each operator's time beside the cost model's (run --compare).
#
# Attention in bf16 is cuDNN's where it was found at build, and each row says whose it was.  Our own
# kernel works on CUDA cores, where the prediction is of a tuned one on tensor cores: expect it to be an
# order of magnitude slower.
#
# Exit code 0: all agreed; 1: something differs; 2: this machine lacks something; 4: a GPU failed.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root" || exit 2
export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0}

gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1)
[[ -n $gpu ]] || { echo 'gpu_check: no GPU (nvidia-smi has none)' >&2; exit 4; }

program=${1-}
if [[ -z $program ]]; then
  flags=(-G Ninja -DMILLWRIGHT_TESTS=OFF -DMILLWRIGHT_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=native)
  mkdir -p build-gpu
  if ! { cmake -S . -B build-gpu "${flags[@]}" &&
    cmake --build build-gpu --target millwright; } >build-gpu/build.log 2>&1; then
    tail -n 20 build-gpu/build.log >&2
    echo 'gpu_check: the build failed' >&2
    exit 2
  fi
  program=build-gpu/millwright
fi

case $gpu in
  *H200*) cluster=dgx-h200 ;;
  *A100*) cluster=dgx-a100 ;;
  *B200*) cluster=dgx-b200 ;;
  *) cluster=dgx-h100 ;;
esac
echo "gpu_check: $gpu, predictions for $cluster"

status=0
small=(--layers 2 --hidden 64 --heads 8 --ffn 96 --vocab 301 --swiglu --rms-norm --rope --untied
  --no-dropout --cluster "$cluster" --ranks 1 --global-batch 4 --backend cuda)
agree() {
  local name=$1 out
  shift
  if out=$(timeout 60 "$program" run "${small[@]}" "$@" --verify --json 2>&1); then
    printf '  %-46s ok, %s, %s\n' "$name" \
      "$(grep -o '"error": [^,]*' <<<"$out" | sort -g -k2 | tail -n 1)" \
      "$(grep -o '"attention_by": "[^"]*"' <<<"$out")"
    grep '^millwright: warning' <<<"$out"
  else
    printf '  %-46s FAILED\n%s\n' "$name" "$(tail -n 15 <<<"$out")"
    status=1
  fi
}
echo 'On the GPU against the dense reference on the CPU, the largest error:'
for dtype in fp64 fp32 bf16; do
  agree "$dtype, grouped queries" --kv-heads 2 --no-bias --seq 64 --micro-batch 2 --dtype "$dtype"
  agree "$dtype, biases, heads of 24, 45 tokens" --kv-heads 8 --head-dim 24 --seq 45 --micro-batch 2 --dtype "$dtype"
  agree "$dtype, attention and MLP computed again" --kv-heads 4 --no-bias --seq 80 --micro-batch 2 \
    --dtype "$dtype" --recompute full
  agree "$dtype, heads of 128, two micro-batches" --kv-heads 1 --head-dim 128 --no-bias --seq 96 \
    --micro-batch 1 --dtype "$dtype"
  # What BF16 rounds decides between experts, so that there is nothing to compare.
  [[ $dtype == bf16 ]] && continue
  if out=$(timeout 60 "$program" run --model tiny-moe --cluster "$cluster" --ranks 1 --global-batch 2 \
    --seq 64 --backend cuda --dtype "$dtype" --verify --json 2>&1); then
    printf '  %-46s ok\n' "$dtype, experts"
  else
    printf '  %-46s FAILED\n%s\n' "$dtype, experts" "$(tail -n 15 <<<"$out")"
    status=1
  fi
done
# Long enough for whole tiles of cuDNN's kernels, forward and backward, and for what is left over.
for tokens in 512 517; do
  agree "bf16, attention of $tokens tokens" --kv-heads 2 --head-dim 64 --no-bias --seq "$tokens" \
    --micro-batch 2 --dtype bf16
done
# cuBLASLt's products in FP8 come out in these two.
for dtype in fp32 bf16; do
  [[ $cluster == dgx-a100 ]] && continue
  agree "$dtype, linear layers in FP8" --kv-heads 2 --no-bias --seq 64 --micro-batch 2 \
    --dtype "$dtype" --precision fp8
done

fp8=(--fp8)
[[ $cluster == dgx-a100 ]] && fp8=()
echo
if timeout 120 "$program" measure --backend cuda --cluster "$cluster" --ranks 1 --quick \
  "${fp8[@]}" --budget 60s --out build-gpu/measured; then
  echo 'Against the curves that are built in:'
  timeout 60 "$program" validate --ops build-gpu/measured || status=1
else
  status=1
fi

echo
timeout 120 "$program" run --layers 1 --hidden 8192 --heads 8 --head-dim 128 --kv-heads 1 --ffn 3584 \
  --vocab 4096 --swiglu --rms-norm --rope --untied --no-bias --no-dropout --cluster "$cluster" \
  --ranks 1 --micro-batch 1 --global-batch 4 --seq 8192 --steps 3 --backend cuda --compare
code=$?
[[ $code == 0 ]] || status=$code
exit "$status"
