"""Rules about prefill/decode disaggregation and the fabric between the nodes."""

from __future__ import annotations

from slipway.rules.rule import Case, Rule

PD_SECTION = "https://github.com/sgl-project/sglang/pull/28737"
DEVICE_VARIABLES = frozenset({"UCX_NET_DEVICES", "NCCL_IB_HCA", "MC_TE_FILTERS", "UCX_TLS"})


def _backend(case: Case) -> str | None:
    transfer = case.recipe.cell.transfer
    return transfer.backend if transfer and case.role.name in {"prefill", "decode"} else None


def _rdma(case: Case) -> bool:
    transfer = case.recipe.cell.transfer
    return _backend(case) is not None and transfer is not None and transfer.devices != "none"


def _differs_from_prefill(case: Case) -> bool:
    prefill = case.recipe.cell.role("prefill")
    shape = ("tp", "pp", "page_size_tokens", "kv_dtype")
    return (
        case.role.name == "decode"
        and prefill is not None
        and any(getattr(prefill, name) != getattr(case.role, name) for name in shape)
    )


def _short_wait(case: Case) -> bool:
    wait = case.role.env.get("SGLANG_DISAGGREGATION_WAITING_TIMEOUT", "300")
    return _backend(case) == "nixl" and not (wait.isdigit() and int(wait) > 300)


def _runs_on_efa(case: Case) -> bool:
    return _backend(case) == "mooncake" and "efa" in case.recipe.cell.requires.fabric


def _efa_variant_incomplete(case: Case) -> bool:
    transfer = case.recipe.cell.transfer
    variant = transfer.fabrics.get("efa") if transfer else None
    return _runs_on_efa(case) and (
        variant is None or variant.env.get("MOONCAKE_PROTOCOL") != "efa" or not variant.image
    )


def _container_without_rdma(case: Case) -> bool:
    container = case.recipe.cell.container
    return _rdma(case) and (
        container.network != "host"
        or container.ulimits.get("memlock") != -1
        or "/dev/infiniband" not in container.devices
        or "IPC_LOCK" not in container.capabilities
    )


RULES: tuple[Rule, ...] = (
    Rule(
        "pd-unequal-layout",
        "refuse",
        _differs_from_prefill,
        "prefill and decode differ in tp, pp, page size or KV dtype",
        "KV pages are copied as they are, so both sides must have the same layout",
        "set the same values on both roles",
        PD_SECTION,
    ),
    Rule(
        "pd-pipeline-parallel",
        "refuse",
        lambda case: _backend(case) is not None and case.role.pp > 1,
        "pipeline parallelism with prefill/decode disaggregation",
        "only a single stage was ever verified",
        "set pp: 1",
        PD_SECTION,
    ),
    Rule(
        "nixl-unpinned",
        "refuse",
        lambda case: _backend(case) == "nixl" and not _rdma(case),
        "NIXL without pinned devices",
        "UCX tries every interface, and each transfer hangs to the 300 s timeout",
        "set transfer.devices: all or one",
        PD_SECTION,
    ),
    Rule(
        "nixl-cold-start",
        "warn",
        _short_wait,
        "NIXL with the default waiting timeout",
        "the first request after a start connects UCX for about 38 s",
        "set env SGLANG_DISAGGREGATION_WAITING_TIMEOUT above 300; the launch proof is the warm-up request",
        PD_SECTION,
    ),
    Rule(
        "devices-in-recipe",
        "refuse",
        lambda case: bool(DEVICE_VARIABLES & case.role.env.keys()),
        "an environment variable of the recipe names network devices",
        "device names differ between hosts and clouds set them to eth0; an inherited or copied list moves KV over TCP unseen",
        "remove it: transfer.devices selects from the inventory's list, and Slipway writes the variable",
        "https://docs.coreweave.com/ (UCX_NET_DEVICES=eth0 in its images), read 2026-11-30",
    ),
    Rule(
        "efa-needs-its-variant",
        "refuse",
        _efa_variant_incomplete,
        "Mooncake on EFA without its own image and protocol",
        "EFA has no RC queue pairs: the stock image starts, warms up, and dies at the first real transfer",
        "add transfer.fabrics.efa with image and MOONCAKE_PROTOCOL: efa, or take efa out of requires.fabric",
        "https://github.com/sgl-project/sglang/issues/24838",
        once=True,
    ),
    Rule(
        "efa-expandable-segments",
        "refuse",
        lambda case: (
            _runs_on_efa(case) and "expandable_segments:True" in case.role.env.get("PYTORCH_CUDA_ALLOC_CONF", "")
        ),
        "expandable_segments with EFA",
        "the memory it allocates cannot be registered with EFA",
        "remove PYTORCH_CUDA_ALLOC_CONF",
        "https://github.com/sgl-project/sglang/pull/39973",
    ),
    Rule(
        "kv-over-tcp",
        "warn",
        lambda case: _backend(case) == "mooncake_tcp",
        "KV goes over TCP",
        "128K tokens of Laguna-M.1 are 37.6 GB: 0.1 s over eight 400 Gb/s devices, minutes over TCP",
        "use it in a lab only",
        "Mooncake's TransferEngine over TCP, run 2026-11-30",
        once=True,
    ),
    Rule(
        "rdma-container",
        "refuse",
        _container_without_rdma,
        "the container cannot use RDMA",
        "registering memory needs /dev/infiniband, memlock -1, IPC_LOCK and the host's network",
        "set container.devices, ulimits, capabilities and network as the other prefill/decode cells do",
        "https://github.com/kvcache-ai/Mooncake/issues/1382",
        once=True,
    ),
)
