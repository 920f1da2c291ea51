# Megatron-LM arguments of the plan tp8 sp pp8 vpp8 dp2 mbs2 zero2 full for llama-3.1-405b on 16 x
# dgx-h100, 128 GPUs, written by Millwright.
# Spelling: NVIDIA/Megatron-LM, megatron/training/arguments.py at commit 000c4ac24f61 (late 2025).
# Use: source this file in bash, and pass "${MEGATRON_ARGS[@]}" to pretrain_gpt.py with your data,
# tokenizer, optimizer and checkpoint options.

NNODES=16
GPUS_PER_NODE=8
MEGATRON_ARGS=(
  # model
  --num-layers 126
  --hidden-size 16384
  --num-attention-heads 128
  --kv-channels 128
  --group-query-attention
  --num-query-groups 8
  --ffn-hidden-size 53248
  --swiglu
  --disable-bias-linear
  --normalization RMSNorm
  --position-embedding-type rope
  --max-position-embeddings 131072
  --vocab-size 128256
  --make-vocab-size-divisible-by 32
  --untie-embeddings-and-output-weights
  --attention-dropout 0.0
  --hidden-dropout 0.0
  # batch
  --seq-length 8192
  --micro-batch-size 2
  --global-batch-size 512
  # precision
  --bf16
  # parallelism
  --tensor-model-parallel-size 8
  --sequence-parallel
  --context-parallel-size 1
  --pipeline-model-parallel-size 8
  --pipeline-model-parallel-layout 'Et|(t*2|)*62tL'
  # data parallelism
  --use-distributed-optimizer
  --use-megatron-fsdp
  --data-parallel-sharding-strategy optim_grads
  --no-gradient-accumulation-fusion
  --ckpt-format fsdp_dtensor
  --overlap-grad-reduce
  --overlap-param-gather
  # recomputation
  --recompute-granularity full
  --recompute-method uniform
  --recompute-num-layers 1
  # kernels and memory
  --attention-backend flash
)
