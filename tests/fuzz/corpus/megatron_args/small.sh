A=(--num-layers ${L:-$((2*(3+1)))} "--hidden-size=64"); A+=(--bf16)
if true; then torchrun --nnodes 2 --nproc_per_node=4 x.py "${A[@]}" --num-attention-heads 4 --seq-length 8 --max-position-embeddings 8 --micro-batch-size 1 --vocab-size 9 --pipeline-model-parallel-size 2 --pipeline-model-parallel-layout "E(t|)*2,tt*2|t*2L" --moe-layer-freq "([0]*1+[1])*2" <<E
x
E
fi