"""Wrong modules of the second bank, which was written without knowledge of how the checks look for faults."""

from types import SimpleNamespace

from .item import Item
from .second_modules import (
    BertAttention,
    Config,
    FairseqAttention,
    FunctionalAttention,
    GptAttention,
    KerasAttention,
    LlamaAttention,
    LucidAttention,
)  # fmt: skip
from .second_more import (
    CachedAttention,
    CloneAttention,
    ConvAttention,
    EspnetAttention,
    FlaxAttention,
    HeadList,
    RoleAttention,
    StackedAttention,
)  # fmt: skip

SECOND_WRONG_MODULES: list[Item] = []


def _add(cls, slip, *fault, said, args=(), also=(), stated=None, relabelled=False):
    name = f"{cls.__name__} {slip}"
    make = lambda: cls(*args, wrong=slip)  # noqa: E731
    SECOND_WRONG_MODULES.append(Item(name, make, fault, tuple(also), said, stated or {}, "module", relabelled))


_gpt = (Config(),)
_add(GptAttention, "peek", "sees_one_ahead", said="the triangle starts one column late", args=_gpt)
_add(GptAttention, "wide", "scale_by_embed_dim", said="the root is of the model's width", args=_gpt)
_add(GptAttention, "unscaled", "no_scale", said="the division was lost in a rewrite", args=_gpt)
_add(GptAttention, "zeros", "mask_fill_zero", said="scores are multiplied by the triangle", args=_gpt)
_add(GptAttention, "late", "mask_after_softmax", said="weights are multiplied by the triangle", args=_gpt,
     also=["causal_after_softmax"])  # fmt: skip
_add(GptAttention, "flat", "merge_without_transpose", said="view without the transpose", args=_gpt)
_add(BertAttention, "rows", "padding_on_query_axis", said="the padding mask hides rows, not columns")
_add(BertAttention, "weak", "mask_fill_weak", said="hidden scores are lowered by three only")
_add(BertAttention, "dropout_scores", "dropout_before_softmax", said="dropout on the scores")
_add(BertAttention, "always", "dropout_in_eval", said="F.dropout with training=True", also=["nondeterministic"])
_add(BertAttention, "residual", "query_added", said="the input is added to the output")
_add(KerasAttention, "no_bias", "bias_ignored", said="the value's bias is not added")
_add(KerasAttention, "tied", "values_by_k_proj", said="values are made by the key's kernel and bias")
_add(KerasAttention, "value_lost", "values_from_key", said="the value argument is not used once a key is given")
_add(KerasAttention, "axis", "softmax_over_queries", said="softmax over the queries")
_add(FairseqAttention, "mixed", "split_mixes_samples", said="view as (B H, L, D) of a time-first tensor",
     also=["split_without_transpose", "split_other"])  # fmt: skip
_add(FairseqAttention, "stream", "keys_from_query", said="keys come from the query's stream")
_add(FairseqAttention, "twice", "scale_twice", said="scaled in q and again in the scores",
     also=["scale_by_d"])  # fmt: skip
_add(FairseqAttention, "order", "mask_head_order", said="the padding mask is repeated heads first")
_add(FairseqAttention, "unmerged", "merge_mixes_samples", said="(B H, T, D) reshaped straight to (T, B, E)",
     also=["merge_without_transpose", "merge_other"])  # fmt: skip
_add(FunctionalAttention, "upside", "mask_inverted", said="torch's True means hidden", stated={"mask": "may attend"})
_add(FunctionalAttention, "order", "mask_head_order", said="heads and samples of the mask are exchanged",
     also=["mask_other"])  # fmt: skip
_add(FunctionalAttention, "batch", "batch_first_confusion", said="batch-first tensors to a time-first function",
     also=["batch_mixed", "raises"], stated={"layout": "B T E"})  # fmt: skip
_add(FunctionalAttention, "no_bias", "bias_ignored", said="in_proj_bias is never handed over")
_add(FunctionalAttention, "train", "dropout_in_eval", said="training=True whatever the mode", also=["nondeterministic"])
_add(FunctionalAttention, "zero", "other_zero_key", said="add_zero_attn: one more key and value of zeros",
     also=["softmax_plus_one", "other: softmax_plus_one"])  # fmt: skip
_add(LlamaAttention, "tiled", "gqa_tiled_heads", said="key heads are tiled 0 1 0 1", relabelled=True)
_add(LlamaAttention, "qknorm", "cosine_scores", said="q and k are normalised")
_add(LlamaAttention, "token", "heads_of_one_token", said="no transpose before torch's attention: heads of one token",
     also=["mask_ignored"])  # fmt: skip
_add(LlamaAttention, "inverse", "scale_inverted", said="scale= is the root, not one over it")
_add(LlamaAttention, "unasked", "other_causal_without_mask", said="hides the future where no mask is given",
     also=["causal_without_mask", "causal_in_place_of_mask", "other: causal_without_mask"],
     stated={"causal": False})  # fmt: skip
_add(LucidAttention, "dim", "scale_by_embed_dim", said="scale is the width to the power -0.5")
_add(LucidAttention, "from_x", "values_from_query", said="values come from x, not from the context")
_add(LucidAttention, "swapped", "split_interleaved", said="only the keys are split (d h)", relabelled=True)
_add(LucidAttention, "max", "mask_fill_positive", said="fills with finfo.max: the minus was lost",
     also=["mask_inverted"])  # fmt: skip
_add(LucidAttention, "lost", "mask_ignored", said="the result of masked_fill is dropped")
_add(LucidAttention, "dim1", "softmax_over_heads", said="softmax over axis 1")
_add(EspnetAttention, "heads", "scale_by_num_heads", said="root of the number of heads")
_add(EspnetAttention, "drop", "dropout_before_softmax", said="dropout on the scores")
_add(EspnetAttention, "equal", "mask_inverted", said="eq(1) for eq(0)", stated={"mask": "may attend"})
_add(EspnetAttention, "tiny", "mask_fill_zero", said="fills with 1e-9")
_add(EspnetAttention, "keys", "returns_keys", said="weights times k")
_add(RoleAttention, "late", "one_projection", said="lambdas of a loop all call the last map: value's",
     also=["keys_by_v_proj", "queries_by_v_proj"])  # fmt: skip
_add(RoleAttention, "never", "mask_ignored", said="the mask is taken and not used")
_add(RoleAttention, "stacked", "merge_interleaved", said="heads stacked on the last axis", relabelled=True)
_add(RoleAttention, "bare", "no_output_projection", said="the output map is never called")
_add(HeadList, "swap", "query_key_exchanged", said="key map on queries and query map on keys", relabelled=True,
     also=["queries_by_k_proj", "keys_by_q_proj", "queries_keys_swapped"])  # fmt: skip
_add(HeadList, "selfkeys", "keys_by_q_proj", said="both by the query map")
_add(HeadList, "first", "heads_share_small_projection", said="always the first head", also=["first_head_only"])
_add(HeadList, "lost", "mask_first_head_only", said="only the first head gets the mask")
_add(HeadList, "mean", "heads_averaged", said="every head is replaced by the mean of heads")
_add(ConvAttention, "mixed", "split_mixes_samples", said="the batch's axis is read as heads", also=["split_other"])
_add(ConvAttention, "once", "scale_half", said="the fourth root is applied to q only")
_add(ConvAttention, "mirror", "mask_transposed", said="scores lie keys by queries, the mask does not")
_add(ConvAttention, "last", "softmax_over_queries", said="scores lie keys by queries, softmax over the last axis")
_add(StackedAttention, "index", "values_by_k_proj", said="the key's matrix, with the value's bias")
_add(StackedAttention, "sample", "batch_mixed", said="every sample reads the first one's keys",
     also=["first_sample_only"])  # fmt: skip
_add(StackedAttention, "mask0", "mask_first_sample", said="the first sample's mask for all")
_add(StackedAttention, "short", "other_total_without_last", said="the total misses the last key",
     also=["exp_not_normalized", "total_without_last", "total_of_other_keys"])  # fmt: skip
_add(StackedAttention, "turned", "batch_mixed", said="rows of (B, T) read as (T, B)",
     also=["merge_mixes_samples", "merge_other", "batch_first_confusion"])  # fmt: skip
_add(CloneAttention, "query", "cross_reads_query_stream", said="the loop maps the query three times")
_add(CloneAttention, "post", "scale_on_output", said="the output is scaled, not the scores",
     also=["scale_after_softmax"])  # fmt: skip
_add(CloneAttention, "order", "mask_head_order", said="heads in front, the mask repeated the other way")
_add(CloneAttention, "view", "merge_mixes_samples", said="(H B, T, D) reshaped to (B, T, E)",
     also=["merge_without_transpose", "merge_other"])  # fmt: skip
_add(FlaxAttention, "key_view", "keys_reshaped", said="keys regrouped by reshape", also=["split_without_transpose"])
_add(FlaxAttention, "depth", "scale_by_d", said="divided by the depth, not its root")
_add(FlaxAttention, "sign", "mask_fill_positive", said="plus 1e10", also=["mask_inverted", "mask_additive_sign"])
_add(FlaxAttention, "gate", "sigmoid_weights", said="sigmoid for softmax")
_add(FlaxAttention, "stop", "gradient_cut", said="detached before the output map")
_add(CachedAttention, "keeps", "keeps_state", said="the cache is filled without being asked")
_add(CachedAttention, "local", "other_chunk_positions", said="every chunk of queries counts from zero",
     also=["mask_first_row", "chunk_positions"])  # fmt: skip
_add(CachedAttention, "ahead", "sees_one_ahead", said="< where it should be <=, with two")
_add(CachedAttention, "inside", "other_window", said="a chunk sees only keys from its own start on",
     also=["local_window", "window", "last_tile_lost", "chunk_sees_itself_only"])  # fmt: skip

# two faults
_add(GptAttention, "unscaled flat", "no_scale", "merge_without_transpose", said="both", args=_gpt)
_add(BertAttention, "rows residual", "padding_on_query_axis", "query_added", said="both")
_add(KerasAttention, "tied axis", "values_by_k_proj", "softmax_over_queries", said="both")
_add(FairseqAttention, "twice order", "scale_twice", "mask_head_order", said="both", also=["scale_by_d"])
_add(LlamaAttention, "tiled inverse", "gqa_tiled_heads", "scale_inverted", said="both",
     args=(SimpleNamespace(dim=24, n_heads=6, n_kv_heads=2),))  # fmt: skip
_add(LucidAttention, "dim lost", "scale_by_embed_dim", "mask_ignored", said="both")
_add(EspnetAttention, "heads tiny", "scale_by_num_heads", "mask_fill_zero", said="both", args=(2, 16))
_add(HeadList, "selfkeys lost", "keys_by_q_proj", "mask_first_head_only", said="both")
_add(ConvAttention, "once mirror", "scale_half", "mask_transposed", said="both")
_add(FlaxAttention, "depth gate", "scale_by_d", "sigmoid_weights", said="both")
