# laguna-tiny.reference/laptop-pd on inventory synthetic (synthetic)
# deployment sha256:d92818f57eaa2209267e810d13879302f97be1608039be29fa549de1c22d7826
# checkpoint slipway/Laguna-Tiny@cf71f95f7954e6761b66b0ef0d9fd423be64360b lock NOT LOCKED
# KV of a 4,096-token prompt: 0.0 GB, 0 s from prefill to decode at 0.34 GB/s

# prefill on node node-1
python -m slipway.reference.engine \
  --model /models/Laguna-Tiny \
  --served-model-name laguna-tiny \
  --max-model-len 4096 \
  --reasoning-parser poolside_v1 \
  --tool-call-parser poolside_v1 \
  --default-chat-template-kwargs '{"enable_thinking":false}' \
  --disaggregation-mode prefill \
  --disaggregation-transfer-backend http \
  --disaggregation-bootstrap-port 8434 \
  --host 127.0.0.1 \
  --port 8432 \
  --dress sglang \
  --enable-cache-report \
  --enable-metrics

# decode on node node-1
python -m slipway.reference.engine \
  --model /models/Laguna-Tiny \
  --served-model-name laguna-tiny \
  --max-model-len 4096 \
  --reasoning-parser poolside_v1 \
  --tool-call-parser poolside_v1 \
  --default-chat-template-kwargs '{"enable_thinking":false}' \
  --disaggregation-mode decode \
  --disaggregation-transfer-backend http \
  --host 127.0.0.1 \
  --port 8433 \
  --dress sglang \
  --enable-cache-report \
  --enable-metrics

# router on node node-1
python -m slipway.reference.router \
  --pd-disaggregation \
  --prefill http://192.0.2.11:8432 8434 \
  --decode http://192.0.2.11:8433 \
  --policy round_robin \
  --host 127.0.0.1 \
  --port 8431

# ready when http://192.0.2.11:8431 generates as laguna-tiny
