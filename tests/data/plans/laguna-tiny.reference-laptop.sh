# laguna-tiny.reference/laptop on inventory synthetic (synthetic)
# deployment sha256:49f757fe49ad65b7179524328ca23c2666cc52364ee12be1d7178cbf04c87015
# checkpoint slipway/Laguna-Tiny@0000000000000000000000000000000000000000 lock NOT LOCKED

# server on node node-1
python -m slipway.reference.engine \
  --model /models/Laguna-Tiny \
  --served-model-name laguna-tiny \
  --max-model-len 4096 \
  --reasoning-parser poolside_v1 \
  --tool-call-parser poolside_v1 \
  --default-chat-template-kwargs '{"enable_thinking":false}' \
  --host 127.0.0.1 \
  --port 8421 \
  --dress vllm \
  --enable-prompt-tokens-details

# ready when http://192.0.2.11:8421 generates as laguna-tiny
