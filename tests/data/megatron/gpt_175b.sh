#!/bin/bash
# A launch script in the manner of Megatron-LM's examples: arrays, a launcher, options after it.
export CUDA_DEVICE_MAX_CONNECTIONS=1

GPUS_PER_NODE=8
NUM_NODES=${NUM_NODES:-16}
MASTER_ADDR=localhost
NODE_RANK=${SLURM_NODEID:-0}
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))

CHECKPOINT_PATH=$1 # <path to checkpoints>
DATA_PATH=$2

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
    --master_addr $MASTER_ADDR
    --master_port 6000
)
MODEL_ARGS=(
    --num-layers 96          # GPT-3
    --hidden-size 12288
    --num-attention-heads 96
    --seq-length 2048
    --max-position-embeddings 2048
    --attention-backend auto # Can use (flash/fused/unfused/local)
)
TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size $((WORLD_SIZE * 12))
    --train-iters 500000
    --weight-decay 0.1
    --adam-beta1 0.9
    --lr 6.0e-5
    --bf16
)
PARALLEL_ARGS=(
    --tensor-model-parallel-size 8
    --pipeline-model-parallel-size 16
)
if [ -n "${SEQUENCE_PARALLEL:-}" ]; then
    PARALLEL_ARGS+=(--sequence-parallel)
fi
DATA_ARGS=(
    --data-path $DATA_PATH
    --vocab-file gpt2-vocab.json
    --merge-file gpt2-merges.txt
    --tokenizer-type GPT2BPETokenizer
    --split 949,50,1
)

torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \
    ${MODEL_ARGS[@]} \
    ${TRAINING_ARGS[@]} \
    ${PARALLEL_ARGS[@]} \
    ${DATA_ARGS[@]} \
    --save "$CHECKPOINT_PATH" --log-interval 100 2>&1 | tee log.txt
