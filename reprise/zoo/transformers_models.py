"""Architectures of transformers, by the classes of their configuration and model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from reprise.zoo.architecture import BATCH, TOKENS, VOCABULARY, Architecture

Inputs = Callable[[], dict[str, torch.Tensor]]
SIZES: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FEW_KEYS = {"num_key_value_heads": 2}
LABELS = {"num_labels": 3}
SEQ2SEQ: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 3,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
IMAGES: Mapping[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
SPEECH: Mapping[str, Any] = {
    **SIZES,
    "conv_dim": (16, 16),
    "conv_kernel": (10, 3),
    "conv_stride": (5, 2),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "mask_time_prob": 0.0,
    "layerdrop": 0.0,
}


def tokens() -> dict[str, torch.Tensor]:
    """Token ids that are their own labels."""
    ids = torch.randint(3, VOCABULARY, (BATCH, TOKENS))
    return {"input_ids": ids, "labels": ids}


def classified_tokens() -> dict[str, torch.Tensor]:
    """Token ids, and a label for each sequence."""
    return {"input_ids": torch.randint(3, VOCABULARY, (BATCH, TOKENS)), "labels": torch.randint(3, (BATCH,))}


def classified_images(size: int = 32) -> dict[str, torch.Tensor]:
    """Images, and a label for each."""
    return {"pixel_values": torch.randn(BATCH, 3, size, size), "labels": torch.randint(3, (BATCH,))}


def large_images() -> dict[str, torch.Tensor]:
    """Images of 64 pixels, and a label for each."""
    return classified_images(64)


def waves() -> dict[str, torch.Tensor]:
    """Sound waves, and a label for each."""
    return {"input_values": torch.randn(BATCH, 800), "labels": torch.randint(3, (BATCH,))}


def spectrograms() -> dict[str, torch.Tensor]:
    """Spectrograms, and token ids as labels."""
    return {"input_features": torch.randn(BATCH, 16, 2 * TOKENS), "labels": torch.randint(3, VOCABULARY, (BATCH, 16))}


def pairs() -> dict[str, torch.Tensor]:
    """Images with a text each."""
    return {"input_ids": torch.randint(3, VOCABULARY, (BATCH, TOKENS)), "pixel_values": torch.randn(BATCH, 3, 32, 32)}


@dataclass(frozen=True)
class Model:
    """A model of transformers: names of its classes, arguments, inputs, and in ``lora`` the modules that peft adapts."""

    config: str
    model: str
    arguments: Mapping[str, Any]
    inputs: Inputs = tokens
    lora: tuple[str, ...] = ()

    def __call__(self) -> Any:
        """The model with checkpointing on, and its loss."""
        import transformers

        config = getattr(transformers, self.config)(**self.arguments)
        model = getattr(transformers, self.model)(config)
        if self.lora:
            import peft

            model = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=[*self.lora], lora_dropout=0.1))
        model.gradient_checkpointing_enable()
        model.train()
        inputs = self.inputs()
        return model, lambda model: _loss(model(**inputs))


def _loss(outputs: Any) -> torch.Tensor:
    loss = getattr(outputs, "loss", None)
    if loss is not None:
        return loss
    return torch.stack([one.square().mean() for one in outputs.to_tuple() if torch.is_tensor(one)]).sum()


def _decoder(name: str, **more: Any) -> Model:
    return Model(f"{name}Config", f"{name}ForCausalLM", {**SIZES, **more})


def _encoder(name: str, **more: Any) -> Model:
    return Model(f"{name}Config", f"{name}ForSequenceClassification", {**SIZES, **LABELS, **more}, classified_tokens)


def _vision(name: str, inputs: Inputs = classified_images, **more: Any) -> Model:
    return Model(f"{name}Config", f"{name}ForImageClassification", {**LABELS, **more}, inputs)


def _seq2seq(name: str, model: str = "", **more: Any) -> Model:
    return Model(f"{name}Config", model or f"{name}ForConditionalGeneration", {**SEQ2SEQ, **more})


_GPT2 = {
    "n_embd": 32,
    "n_layer": 6,
    "n_head": 4,
    "n_positions": 64,
    "vocab_size": VOCABULARY,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 3,
    "num_heads": 4,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
}
_EXPERTS = {**FEW_KEYS, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_TOWER = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
MODELS: Mapping[str, Mapping[str, Model]] = {
    "decoder": {
        "GPT-2": Model("GPT2Config", "GPT2LMHeadModel", _GPT2),
        "Llama": _decoder("Llama", **FEW_KEYS),
        "Mistral": _decoder("Mistral", **FEW_KEYS, sliding_window=16),
        "Qwen2": _decoder("Qwen2", **FEW_KEYS),
        "Gemma 2": _decoder("Gemma2", **FEW_KEYS, head_dim=8),
        "Phi": _decoder("Phi"),
        "OPT": _decoder("OPT", ffn_dim=64, word_embed_proj_dim=32),
        "GPT-NeoX": _decoder("GPTNeoX"),
        "Bloom": _decoder("Bloom", n_layer=6, n_head=4),
    },
    "decoder, LoRA": {
        "Llama with LoRA": Model("LlamaConfig", "LlamaForCausalLM", {**SIZES, **FEW_KEYS}, lora=("q_proj", "v_proj")),
        "GPT-2 with LoRA": Model("GPT2Config", "GPT2LMHeadModel", _GPT2, lora=("c_attn",)),
    },
    "experts": {
        "Mixtral": _decoder("Mixtral", **FEW_KEYS, num_local_experts=4, num_experts_per_tok=2),
        "Qwen2-MoE": _decoder("Qwen2Moe", **_EXPERTS, shared_expert_intermediate_size=32),
        "OLMoE": _decoder("Olmoe", **_EXPERTS),
    },
    "state space": {
        "Mamba": _decoder("Mamba", state_size=8),
        "Mamba-2": _decoder("Mamba2", state_size=8, num_heads=8, head_dim=8, n_groups=1, chunk_size=16),
    },
    "encoder": {
        "BERT": _encoder("Bert"),
        "RoBERTa": _encoder("Roberta", max_position_embeddings=80),
        "DeBERTa-v2": _encoder("DebertaV2", relative_attention=True, pos_att_type=["c2p", "p2c"]),
        "ELECTRA": _encoder("Electra", embedding_size=16),
        "DistilBERT": _encoder("DistilBert", dim=32, n_layers=6, n_heads=4, hidden_dim=64),
        "ModernBERT": _encoder("ModernBert", global_attn_every_n_layers=2, local_attention=16),
    },
    "encoder and decoder": {
        "T5": Model("T5Config", "T5ForConditionalGeneration", _T5),
        "BART": _seq2seq("Bart"),
        "Marian": _seq2seq("Marian", "MarianMTModel"),
    },
    "vision": {
        "ViT": _vision("ViT", **IMAGES),
        "DeiT": _vision("DeiT", **IMAGES),
        "BEiT": _vision("Beit", **IMAGES),
        "DINOv2": _vision("Dinov2", **{**IMAGES, "mlp_ratio": 2}),
        "Swin": _vision("Swin", image_size=32, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4),
        "SegFormer": _vision("Segformer", hidden_sizes=[16, 16, 32, 32], decoder_hidden_size=32, inputs=large_images),
    },
    "audio": {
        "Whisper": Model(
            "WhisperConfig",
            "WhisperForConditionalGeneration",
            {**SEQ2SEQ, "num_mel_bins": 16, "max_source_positions": TOKENS, "max_target_positions": TOKENS},
            spectrograms,
        ),
        "Wav2Vec2": Model("Wav2Vec2Config", "Wav2Vec2ForSequenceClassification", {**SPEECH, **LABELS}, waves),
        "HuBERT": Model("HubertConfig", "HubertForSequenceClassification", {**SPEECH, **LABELS}, waves),
    },
    "image and text": {
        "CLIP": Model(
            "CLIPConfig",
            "CLIPModel",
            {
                "text_config": {**_TOWER, "vocab_size": VOCABULARY, "max_position_embeddings": 64, "eos_token_id": 2},
                "vision_config": {**_TOWER, "image_size": 32, "patch_size": 8},
                "projection_dim": 16,
            },
            pairs,
        ),
    },
}


def architectures() -> Iterator[Architecture]:
    """The models of transformers."""
    for kind, models in MODELS.items():
        for name, model in models.items():
            package = "transformers, peft" if model.lora else "transformers"
            yield Architecture(name, package, kind, model)
