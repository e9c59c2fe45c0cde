# laguna-s-2.1.vllm/8xh200-bf16-dflash on inventory synthetic (synthetic)
# deployment sha256:d0156714602c7d48149281962e62e3e46b3e8f1fcbe4a313ffda77b490331997
# checkpoint poolside/Laguna-S-2.1@NOT PINNED lock NOT LOCKED
# checkpoint poolside/Laguna-S-2.1-DFlash@NOT PINNED lock NOT LOCKED

# server on node node-1
docker run \
  --detach \
  --name synthetic-server \
  --gpus all \
  --env HF_HUB_OFFLINE=1 \
  --env VLLM_NO_USAGE_STATS=1 \
  --ipc=host \
  --publish 8000:8000 \
  --volume /models:/models:ro \
  vllm/vllm-openai:v0.25.1@sha256:e4f88a835143cd22aee2397a26ec6bb80b3a4a6fe0c882bcbc63822904766089 /models/Laguna-S-2.1 \
  --tensor-parallel-size 8 \
  --pipeline-parallel-size 1 \
  --max-model-len 16384 \
  --tool-call-parser poolside_v1 \
  --reasoning-parser poolside_v1 \
  --speculative-config '{"model":"/models/Laguna-S-2.1-DFlash","num_speculative_tokens":15,"method":"dflash"}' \
  --served-model-name laguna \
  --default-chat-template-kwargs '{"enable_thinking":true}' \
  --host 0.0.0.0 \
  --port 8000 \
  --trust-remote-code \
  --moe-backend triton \
  --max-num-seqs 32 \
  --enable-auto-tool-choice \
  --enable-prompt-tokens-details

# ready when http://192.0.2.11:8000 generates as laguna
