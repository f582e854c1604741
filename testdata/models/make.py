"""Makes the model goldens: tiny random models, run by transformers in float32.

Each file is a gzipped safetensors file: the weights under their names on disk, `input_ids` and `labels`, `logits`,
`loss` (mean over counted labels, plus the auxiliary loss where the model has one), and `grad.NAME` for every weight.
The metadata holds `config`, the config.json. Run in this folder with torch, transformers and safetensors installed.
"""

import gzip
import json

import torch
from safetensors.torch import save
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

SIZES = dict(vocab_size=31, hidden_size=16, intermediate_size=23, max_position_embeddings=64)


def on_disk(tensors):
    """Names and shapes of files: the fused experts of the running model are one tensor each there."""
    out = {}
    for name, value in tensors.items():
        if name.endswith("experts.gate_up_proj"):
            half = value.shape[1] // 2
            for expert in range(value.shape[0]):
                prefix = name.replace("gate_up_proj", str(expert))
                out[f"{prefix}.gate_proj.weight"] = value[expert, :half]
                out[f"{prefix}.up_proj.weight"] = value[expert, half:]
        elif name.endswith("experts.down_proj"):
            for expert in range(value.shape[0]):
                out[name.replace("down_proj", f"{expert}.down_proj.weight")] = value[expert]
        else:
            out[name] = value
    return {name: value.detach().clone().contiguous() for name, value in out.items()}


def make(name, config, seed):
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", experts_implementation="eager").float().train()
    with torch.no_grad():
        for key, value in model.named_parameters():
            # Large enough that every part of the model matters in the result.
            value.copy_(torch.randn_like(value) * (0.3 if value.ndim > 1 else 0.2))
            # The norms of Gemma add 1 themselves.
            norm = "norm" in key or ".ln_" in key and key.endswith("weight")
            if norm and not config.model_type.startswith("gemma"):
                value.add_(1.0)
    ids = torch.randint(0, config.vocab_size, (3, 11))
    labels = torch.randint(0, config.vocab_size, (3, 11))
    labels[0, 3:5] = -100
    labels[2, 10] = -100
    moe = config.model_type.endswith("_moe")
    out = model(input_ids=ids, **({"output_router_logits": True} if moe else {}))
    counted = (labels != -100).sum()
    loss = torch.nn.functional.cross_entropy(out.logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
    if moe:
        loss = loss + config.router_aux_loss_coef * out.aux_loss
    loss.backward()
    params = dict(model.named_parameters())
    tensors = on_disk(params)
    tensors |= {f"grad.{k}": v for k, v in on_disk({k: p.grad for k, p in params.items()}).items()}
    tensors |= {"input_ids": ids, "labels": labels, "logits": out.logits.detach(), "loss": loss.detach()}
    tensors["counted"] = counted
    if moe:
        tensors["aux_loss"] = out.aux_loss.detach()
    data = save(tensors, metadata={"config": json.dumps(config.to_dict(), default=str)})
    with open(f"{name}.safetensors.gz", "wb") as file:
        file.write(gzip.compress(data, 9, mtime=0))


llama3 = dict(
    rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16
)
make(
    "llama",
    LlamaConfig(
        **SIZES, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=6, rope_scaling=llama3
    ),
    1,
)
make(
    "llama-bias",
    LlamaConfig(
        **SIZES,
        num_hidden_layers=1,
        num_attention_heads=8,
        num_key_value_heads=1,
        head_dim=6,
        attention_bias=True,
        mlp_bias=True,
        hidden_act="gelu_pytorch_tanh",
        rope_scaling=dict(rope_type="linear", factor=4.0),
    ),
    2,
)
make("qwen2", Qwen2Config(**SIZES, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2), 3)
make(
    "qwen2-tied",
    Qwen2Config(
        **SIZES,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        tie_word_embeddings=True,
        rope_theta=1e6,
    ),
    4,
)
make(
    "qwen2-window",
    Qwen2Config(
        **SIZES,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        use_sliding_window=True,
        sliding_window=4,
        max_window_layers=1,
        rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16),
    ),
    5,
)
MOE = dict(num_experts=5, num_experts_per_tok=2, moe_intermediate_size=13, shared_expert_intermediate_size=19)
MOE |= dict(num_attention_heads=4, num_key_value_heads=2, router_aux_loss_coef=0.1)
make("qwen2-moe", Qwen2MoeConfig(**SIZES, **MOE, num_hidden_layers=2), 6)
make(
    "qwen2-moe-mixed",
    Qwen2MoeConfig(
        **SIZES, **MOE, num_hidden_layers=3, norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[1]
    ),
    7,
)

GROUPS = dict(num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=6)
make("mistral", MistralConfig(**SIZES, **GROUPS, sliding_window=5), 8)
make("qwen3", Qwen3Config(**SIZES, **GROUPS, rope_theta=1e6), 9)
make(
    "qwen3-moe",
    Qwen3MoeConfig(
        **SIZES,
        **(GROUPS | dict(num_hidden_layers=3)),
        num_experts=5,
        num_experts_per_tok=2,
        moe_intermediate_size=13,
        router_aux_loss_coef=0.1,
        norm_topk_prob=True,
        mlp_only_layers=[1],
    ),
    10,
)
make(
    "gemma2",
    Gemma2Config(
        **SIZES,
        **(GROUPS | dict(num_hidden_layers=3)),
        # torch would leave the row of this token out of the embedding's gradient.
        pad_token_id=None,
        sliding_window=5,
        query_pre_attn_scalar=9,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=3.0,
    ),
    11,
)
make(
    "gemma3",
    Gemma3TextConfig(
        **SIZES,
        **(GROUPS | dict(num_hidden_layers=3)),
        # torch would leave the row of this token out of the embedding's gradient.
        pad_token_id=None,
        sliding_window=5,
        query_pre_attn_scalar=9,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters=dict(
            sliding_attention=dict(rope_type="default", rope_theta=100.0),
            full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1e4),
        ),
    ),
    12,
)
make(
    "phi3",
    Phi3Config(
        **(SIZES | dict(hidden_size=24)),
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=5,
        pad_token_id=None,
        eos_token_id=None,
    ),
    13,
)
make(
    "phi3-long",
    Phi3Config(
        **(SIZES | dict(hidden_size=32)),
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        pad_token_id=None,
        eos_token_id=None,
        original_max_position_embeddings=8,
        rope_parameters=dict(
            rope_type="longrope",
            rope_theta=1e4,
            partial_rotary_factor=0.75,
            short_factor=[1.0, 1.1, 1.5],
            long_factor=[1.0, 3.0, 7.0],
        ),
    ),
    14,
)
make(
    "gpt2",
    GPT2Config(
        vocab_size=31,
        n_embd=16,
        n_layer=2,
        n_head=4,
        n_positions=64,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
    ),
    15,
)


def make_seeing(name, config, seed):
    """A model that sees, with what it makes of text alone."""
    torch.manual_seed(seed)
    model = Qwen2_5_VLForConditionalGeneration._from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for key, value in model.named_parameters():
            value.copy_(torch.randn_like(value) * (0.3 if value.ndim > 1 else 0.2))
            if "norm" in key:
                value.add_(1.0)
        ids = torch.randint(0, 24, (3, 11))
        logits = model(input_ids=ids).logits
    tensors = on_disk(dict(model.named_parameters())) | {"input_ids": ids, "logits": logits}
    data = save(tensors, metadata={"config": json.dumps(config.to_dict(), default=str)})
    with open(f"{name}.safetensors.gz", "wb") as file:
        file.write(gzip.compress(data, 9, mtime=0))


make_seeing(
    "qwen2-5-vl",
    Qwen2_5_VLConfig(
        text_config=dict(
            **SIZES,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            rope_scaling=dict(rope_type="default", mrope_section=[1, 1, 2]),
            bos_token_id=None,
            eos_token_id=None,
        ),
        vision_config=dict(
            depth=2,
            hidden_size=16,
            intermediate_size=20,
            num_heads=2,
            patch_size=2,
            spatial_merge_size=2,
            temporal_patch_size=2,
            window_size=8,
            fullatt_block_indexes=[1],
            out_hidden_size=16,
        ),
        image_token_id=25,
        video_token_id=26,
        vision_start_token_id=27,
        vision_end_token_id=28,
    ),
    16,
)
