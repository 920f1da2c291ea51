# One string of options, as older scripts have it, and a launcher under srun.
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=8
TP=${1:-2}
OPTIONS=" \
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 \
    --num-attention-heads 32 --group-query-attention --num-query-groups 8 \
    --max-position-embeddings 32768 --seq-length 4096 \
    --position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear \
    --untie-embeddings-and-output-weights --attention-dropout 0.0 --hidden-dropout 0.0 \
    --num-experts 8 --moe-router-topk 2 --moe-token-dispatcher-type alltoall \
    --moe-grouped-gemm --moe-aux-loss-coeff 1e-2 \
    --tokenizer-type Llama2Tokenizer --tokenizer-model tokenizer.model \
    --micro-batch-size 1 --global-batch-size 256 --bf16 \
    --tensor-model-parallel-size ${TP} --sequence-parallel \
    --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 4 \
    --expert-model-parallel-size 8 --expert-tensor-parallel-size=1 \
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
    --recompute-granularity selective --recompute-modules core_attn layernorm \
    --lr 1e-4 --seqence-length 1"
srun python -u pretrain_gpt.py ${OPTIONS} --no-load-optim
