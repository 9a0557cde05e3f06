"""Tiny random configurations of the architectures that `transformers` ships: real code paths, no download."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from benchmarks.accuracy import batches
from benchmarks.accuracy.batches import FRAMES, LABELS, MELS, PIXELS, VOCABULARY, Batch

DROPOUT = 0.1


@dataclass(frozen=True)
class Architecture:
    """One model: how it is made and what it is fed. `build` and `batch` take a seed."""

    name: str
    family: str
    model_class: str
    config: Callable[[], Any]
    batch: Callable[[int], Batch]

    def build(self, seed: int) -> nn.Module:
        """The model in training mode. The same seed gives the same weights."""
        torch.manual_seed(seed)
        model: nn.Module = getattr(transformers, self.model_class)(self.config())
        return model.train()


def loss_of(output: Any) -> Tensor:
    """The loss a model returns; the mean square of its first output where it returns none."""
    loss = getattr(output, "loss", None)
    if isinstance(loss, Tensor):
        return loss
    first: Tensor = output[0]
    return first.float().pow(2).mean()


def _config(name: str, **settings: Any) -> Callable[[], Any]:
    return lambda: getattr(transformers, name)(**settings)


_IDS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_SIZES: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
}  # fmt: skip
_TEXT: dict[str, Any] = {"vocab_size": VOCABULARY, "max_position_embeddings": 40, **_SIZES, **_IDS}
_DROPPED: dict[str, Any] = {"hidden_dropout_prob": DROPOUT, "attention_probs_dropout_prob": DROPOUT}
_GROUPED: dict[str, Any] = {**_TEXT, "num_key_value_heads": 2, "attention_dropout": DROPOUT, "use_cache": False}
_GPT: dict[str, Any] = {
    "vocab_size": VOCABULARY, "n_positions": 40, "n_embd": 32, "n_layer": 2, "n_head": 4, "use_cache": False, **_IDS,
}  # fmt: skip
_ENCODER_DECODER: dict[str, Any] = {
    "vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 40,
    "use_cache": False, "decoder_start_token_id": 1, **_IDS,
}  # fmt: skip
_POSITIONLESS: dict[str, Any] = {k: v for k, v in _ENCODER_DECODER.items() if k != "max_position_embeddings"}
_T5: dict[str, Any] = {
    "vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4,
    "dropout_rate": DROPOUT, "use_cache": False, "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
_IMAGE: dict[str, Any] = {"image_size": PIXELS, "patch_size": 8, "num_labels": LABELS}
_EXPERTS: dict[str, Any] = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "output_router_logits": True,
}  # fmt: skip
_SPEECH: dict[str, Any] = {
    **_SIZES, **_DROPPED, "vocab_size": 24, "conv_dim": (16, 16), "conv_kernel": (8, 4), "conv_stride": (4, 4),
    "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2,
    "mask_time_length": 2, "mask_time_min_masks": 1, "ctc_zero_infinity": True, "layerdrop": 0.0, "pad_token_id": 0,
}  # fmt: skip


def _clip() -> Any:
    text = {**_TEXT, "eos_token_id": VOCABULARY - 1, "attention_dropout": DROPOUT}
    image = {**_SIZES, "image_size": PIXELS, "patch_size": 8, "attention_dropout": DROPOUT}
    return transformers.CLIPConfig(text_config=text, vision_config=image, projection_dim=16)


def _siglip() -> Any:
    image = {**_SIZES, "image_size": PIXELS, "patch_size": 8}
    return transformers.SiglipConfig(text_config=_TEXT, vision_config=image)


def _clip_batch(seed: int) -> Batch:
    return {**batches.images_and_text(seed), "return_loss": torch.tensor(True)}


_TABLE: list[tuple[str, str, str, Callable[[], Any], Callable[[int], Batch]]] = [
    ("BERT", "encoder", "BertForMaskedLM", _config("BertConfig", **_TEXT, **_DROPPED), batches.text),
    ("RoBERTa", "encoder", "RobertaForSequenceClassification",
     _config("RobertaConfig", **_TEXT, **_DROPPED, num_labels=LABELS), batches.text_to_classes),
    ("DistilBERT", "encoder", "DistilBertForMaskedLM",
     _config("DistilBertConfig", vocab_size=VOCABULARY, dim=32, n_layers=2, n_heads=4, hidden_dim=48), batches.text),
    ("ELECTRA", "encoder", "ElectraForPreTraining",
     _config("ElectraConfig", **_TEXT, **_DROPPED, embedding_size=16), batches.detection_of_replaced_tokens),
    ("DeBERTa-v2", "encoder", "DebertaV2ForMaskedLM",
     _config("DebertaV2Config", **_TEXT, **_DROPPED, relative_attention=True, pos_att_type=["p2c", "c2p"]),
     batches.text),
    ("ALBERT", "encoder", "AlbertForMaskedLM",
     _config("AlbertConfig", **_TEXT, **_DROPPED, embedding_size=16), batches.text),
    ("ModernBERT", "encoder", "ModernBertForMaskedLM",
     _config("ModernBertConfig", **_TEXT, cls_token_id=1, sep_token_id=2, attention_dropout=DROPOUT,
             local_attention=4), batches.text),
    ("MPNet", "encoder", "MPNetForMaskedLM", _config("MPNetConfig", **_TEXT, **_DROPPED), batches.text),
    ("FNet", "encoder", "FNetForMaskedLM",
     _config("FNetConfig", **_TEXT, hidden_dropout_prob=DROPOUT), batches.text_without_mask),
    ("GPT-2", "decoder", "GPT2LMHeadModel", _config("GPT2Config", **_GPT), batches.text),
    ("GPT-Neo", "decoder", "GPTNeoForCausalLM",
     _config("GPTNeoConfig", vocab_size=VOCABULARY, max_position_embeddings=40, hidden_size=32, num_layers=2,
             num_heads=4, intermediate_size=48, attention_types=[[["global", "local"], 1]], window_size=4,
             attention_dropout=DROPOUT, resid_dropout=DROPOUT, use_cache=False, **_IDS), batches.text),
    ("GPT-NeoX", "decoder", "GPTNeoXForCausalLM",
     _config("GPTNeoXConfig", **_TEXT, attention_dropout=DROPOUT, hidden_dropout=DROPOUT, use_cache=False),
     batches.text_padded_left),
    ("GPT-J", "decoder", "GPTJForCausalLM",
     _config("GPTJConfig", **_GPT, rotary_dim=4, attn_pdrop=DROPOUT), batches.text),
    ("OPT", "decoder", "OPTForCausalLM",
     _config("OPTConfig", vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, ffn_dim=48,
             num_attention_heads=4, max_position_embeddings=40, word_embed_proj_dim=32, use_cache=False, **_IDS),
     batches.text_padded_left),
    ("Bloom", "decoder", "BloomForCausalLM",
     _config("BloomConfig", vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4, hidden_dropout=DROPOUT,
             attention_dropout=DROPOUT, use_cache=False, **_IDS), batches.text_padded_left),
    ("MPT", "decoder", "MptForCausalLM",
     _config("MptConfig", vocab_size=VOCABULARY, d_model=32, n_layers=2, n_heads=4, expansion_ratio=2,
             max_seq_len=40, use_cache=False), batches.text),
    ("Falcon", "decoder", "FalconForCausalLM",
     _config("FalconConfig", **_TEXT, attention_dropout=DROPOUT, hidden_dropout=DROPOUT, use_cache=False),
     batches.text),
    ("Llama", "decoder", "LlamaForCausalLM", _config("LlamaConfig", **_GROUPED), batches.text_padded_left),
    ("Mistral", "decoder", "MistralForCausalLM",
     _config("MistralConfig", **_GROUPED, head_dim=8, sliding_window=4), batches.text),
    ("Qwen2", "decoder", "Qwen2ForCausalLM", _config("Qwen2Config", **_GROUPED), batches.text),
    ("Qwen3", "decoder", "Qwen3ForCausalLM", _config("Qwen3Config", **_GROUPED, head_dim=8), batches.text_padded_left),
    ("Gemma", "decoder", "GemmaForCausalLM", _config("GemmaConfig", **_GROUPED, head_dim=8), batches.text),
    ("Gemma2", "decoder", "Gemma2ForCausalLM",
     _config("Gemma2Config", **_GROUPED, head_dim=8, sliding_window=4, attn_implementation="eager"), batches.text),
    ("Phi", "decoder", "PhiForCausalLM", _config("PhiConfig", **_GROUPED, resid_pdrop=DROPOUT), batches.text),
    ("OLMo2", "decoder", "Olmo2ForCausalLM", _config("Olmo2Config", **_GROUPED), batches.text_padded_left),
    ("T5", "encoder-decoder", "T5ForConditionalGeneration",
     _config("T5Config", **_T5, feed_forward_proj="relu"), batches.text_to_text),
    ("MT5", "encoder-decoder", "MT5ForConditionalGeneration", _config("MT5Config", **_T5), batches.text_to_text),
    ("UMT5", "encoder-decoder", "UMT5ForConditionalGeneration", _config("UMT5Config", **_T5), batches.text_to_text),
    ("BART", "encoder-decoder", "BartForConditionalGeneration",
     _config("BartConfig", **_ENCODER_DECODER, attention_dropout=DROPOUT), batches.text_to_text),
    ("mBART", "encoder-decoder", "MBartForConditionalGeneration",
     _config("MBartConfig", **_ENCODER_DECODER), batches.text_to_text),
    ("Pegasus", "encoder-decoder", "PegasusForConditionalGeneration",
     _config("PegasusConfig", **_ENCODER_DECODER), batches.text_to_text),
    ("M2M100", "encoder-decoder", "M2M100ForConditionalGeneration",
     _config("M2M100Config", **_ENCODER_DECODER), batches.text_to_text),
    ("Mixtral", "mixture of experts", "MixtralForCausalLM",
     _config("MixtralConfig", **_GROUPED, num_local_experts=4, output_router_logits=True), batches.text),
    ("Qwen2-MoE", "mixture of experts", "Qwen2MoeForCausalLM",
     _config("Qwen2MoeConfig", **_GROUPED, **_EXPERTS, shared_expert_intermediate_size=24), batches.text),
    ("OLMoE", "mixture of experts", "OlmoeForCausalLM",
     _config("OlmoeConfig", **_GROUPED, num_experts=4, num_experts_per_tok=2), batches.text),
    ("Switch", "mixture of experts", "SwitchTransformersForConditionalGeneration",
     _config("SwitchTransformersConfig", **_T5, num_experts=4, num_sparse_encoder_layers=1,
             num_sparse_decoder_layers=1, expert_capacity=16), batches.text_to_text),
    ("Mamba", "state space", "MambaForCausalLM",
     _config("MambaConfig", vocab_size=VOCABULARY, hidden_size=32, state_size=4, num_hidden_layers=2,
             use_cache=False, **_IDS), batches.text),
    ("Mamba2", "state space", "Mamba2ForCausalLM",
     _config("Mamba2Config", vocab_size=VOCABULARY, hidden_size=32, state_size=8, num_hidden_layers=2, num_heads=8,
             head_dim=8, n_groups=1, chunk_size=4, use_cache=False, **_IDS), batches.text),
    ("RWKV", "state space", "RwkvForCausalLM",
     _config("RwkvConfig", vocab_size=VOCABULARY, context_length=40, hidden_size=32, num_hidden_layers=2,
             use_cache=False, bos_token_id=1, eos_token_id=2), batches.text_without_mask),
    ("ViT", "vision", "ViTForImageClassification",
     _config("ViTConfig", **_SIZES, **_DROPPED, **_IMAGE), batches.images_to_classes),
    ("DeiT", "vision", "DeiTForMaskedImageModeling",
     _config("DeiTConfig", **_SIZES, **_DROPPED, image_size=PIXELS, patch_size=8, encoder_stride=8),
     batches.masked_images),
    ("BEiT", "vision", "BeitForImageClassification",
     _config("BeitConfig", **_SIZES, **_DROPPED, **_IMAGE, use_relative_position_bias=True),
     batches.images_to_classes),
    ("Swin", "vision", "SwinForImageClassification",
     _config("SwinConfig", image_size=PIXELS, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4],
             window_size=4, num_labels=LABELS, **_DROPPED), batches.images_to_classes),
    ("ConvNext", "vision", "ConvNextForImageClassification",
     _config("ConvNextConfig", hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, num_labels=LABELS,
             drop_path_rate=DROPOUT), batches.images_to_classes),
    ("ResNet", "vision", "ResNetForImageClassification",
     _config("ResNetConfig", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], layer_type="basic",
             num_labels=LABELS), batches.images_to_classes),
    ("MobileNetV2", "vision", "MobileNetV2ForImageClassification",
     _config("MobileNetV2Config", image_size=PIXELS, depth_multiplier=0.25, num_labels=LABELS),
     batches.images_to_classes),
    ("SegFormer", "vision", "SegformerForSemanticSegmentation",
     _config("SegformerConfig", hidden_sizes=[8, 16], num_encoder_blocks=2, depths=[1, 1], num_attention_heads=[1, 2],
             sr_ratios=[2, 1], patch_sizes=[7, 3], strides=[4, 2], mlp_ratios=[2, 2], decoder_hidden_size=16,
             num_labels=LABELS, **_DROPPED), batches.images_to_maps),
    ("CLIP", "vision", "CLIPModel", _clip, _clip_batch),
    ("SigLIP", "vision", "SiglipModel", _siglip, _clip_batch),
    ("Wav2Vec2", "audio", "Wav2Vec2ForCTC", _config("Wav2Vec2Config", **_SPEECH), batches.speech_to_tokens),
    ("HuBERT", "audio", "HubertForCTC",
     _config("HubertConfig", **_SPEECH, feat_extract_norm="group"), batches.speech_to_tokens),
    ("WavLM", "audio", "WavLMForCTC",
     _config("WavLMConfig", **_SPEECH, num_buckets=8, max_bucket_distance=16), batches.speech_to_tokens),
    ("Whisper", "audio", "WhisperForConditionalGeneration",
     _config("WhisperConfig", **_POSITIONLESS,
             num_mel_bins=MELS, max_source_positions=FRAMES // 2, max_target_positions=40, dropout=DROPOUT,
             suppress_tokens=None, begin_suppress_tokens=None), batches.speech_to_text),
    ("AST", "audio", "ASTForAudioClassification",
     _config("ASTConfig", **_SIZES, **_DROPPED, patch_size=4, frequency_stride=4, time_stride=4, max_length=FRAMES,
             num_mel_bins=MELS, num_labels=LABELS), batches.spectrogram_to_classes),
    ("PatchTST", "time series", "PatchTSTForPrediction",
     _config("PatchTSTConfig", num_input_channels=2, context_length=FRAMES, prediction_length=4, patch_length=4,
             patch_stride=4, d_model=16, num_hidden_layers=2, num_attention_heads=2, ffn_dim=32, random_mask_ratio=0.4,
             attention_dropout=DROPOUT), batches.series),
    ("Longformer", "encoder", "LongformerForMaskedLM",
     _config("LongformerConfig", **_TEXT, **_DROPPED, attention_window=4), batches.text),
    ("BigBird", "encoder", "BigBirdForMaskedLM",
     _config("BigBirdConfig", **_TEXT, **_DROPPED, attention_type="original_full"), batches.text),
    ("XLNet", "encoder", "XLNetLMHeadModel",
     _config("XLNetConfig", vocab_size=VOCABULARY, d_model=32, n_layer=2, n_head=4, d_inner=48), batches.text),
    ("Funnel", "encoder", "FunnelForMaskedLM",
     _config("FunnelConfig", vocab_size=VOCABULARY, block_sizes=[1, 1], num_decoder_layers=1, d_model=32, n_head=4,
             d_head=8, d_inner=48), batches.text),
    ("LED", "encoder-decoder", "LEDForConditionalGeneration",
     _config("LEDConfig", **_POSITIONLESS, max_encoder_position_embeddings=40, max_decoder_position_embeddings=40,
             attention_window=4), batches.text_to_text),
    ("Marian", "encoder-decoder", "MarianMTModel",
     _config("MarianConfig", **_ENCODER_DECODER), batches.text_to_text),
    ("NLLB-MoE", "mixture of experts", "NllbMoeForConditionalGeneration",
     _config("NllbMoeConfig", **_ENCODER_DECODER, num_experts=4, encoder_sparse_step=2, decoder_sparse_step=2,
             expert_capacity=16), batches.text_to_text),
    ("DeepSeek-V3", "mixture of experts", "DeepseekV3ForCausalLM",
     _config("DeepseekV3Config", **{**_GROUPED, "num_key_value_heads": 4}, moe_intermediate_size=24,
             n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2, n_group=2, topk_group=1,
             first_k_dense_replace=1, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8,
             v_head_dim=8), batches.text),
    ("Phi-MoE", "mixture of experts", "PhimoeForCausalLM",
     _config("PhimoeConfig", **_GROUPED, num_local_experts=4, output_router_logits=True), batches.text),
    ("Granite-MoE", "mixture of experts", "GraniteMoeForCausalLM",
     _config("GraniteMoeConfig", **_GROUPED, num_local_experts=4), batches.text),
    ("Llama4", "mixture of experts", "Llama4ForCausalLM",
     _config("Llama4TextConfig", **_GROUPED, intermediate_size_mlp=48, head_dim=8, num_local_experts=4,
             num_experts_per_tok=1, attention_chunk_size=8), batches.text),
    ("Qwen3-Next", "state space", "Qwen3NextForCausalLM",
     _config("Qwen3NextConfig", **_GROUPED, head_dim=8, layer_types=["linear_attention", "full_attention"],
             linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8,
             moe_intermediate_size=24, shared_expert_intermediate_size=24, num_experts=4, num_experts_per_tok=2),
     batches.text),
    ("Bamba", "state space", "BambaForCausalLM",
     _config("BambaConfig", **_GROUPED, attn_layer_indices=[1], mamba_n_heads=8, mamba_d_head=8, mamba_n_groups=1,
             mamba_d_state=8, mamba_expand=2, mamba_chunk_size=4), batches.text),
    ("Gemma3", "decoder", "Gemma3ForCausalLM",
     _config("Gemma3TextConfig", **_GROUPED, head_dim=8, sliding_window=4), batches.text_padded_left),
    ("ViLT", "vision", "ViltForQuestionAnswering",
     _config("ViltConfig", **_TEXT, **_DROPPED, image_size=PIXELS, patch_size=8, num_labels=LABELS),
     batches.images_and_text),
    ("SEW", "audio", "SEWForCTC", _config("SEWConfig", **_SPEECH, squeeze_factor=2), batches.speech_to_tokens),
    ("Wav2Vec2-Conformer", "audio", "Wav2Vec2ConformerForCTC",
     _config("Wav2Vec2ConformerConfig", **_SPEECH, conv_depthwise_kernel_size=3), batches.speech_to_tokens),
]  # fmt: skip

ARCHITECTURES: tuple[Architecture, ...] = tuple(Architecture(*row) for row in _TABLE)


def architecture(name: str) -> Architecture:
    """Raises KeyError for a name that is not in the table."""
    return {one.name: one for one in ARCHITECTURES}[name]
