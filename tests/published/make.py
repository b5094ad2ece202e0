#!/usr/bin/env python3
"""usage: make.py [--check] [FOLDER]

Small models of `transformers`, each a folder as its save_pretrained writes it, with
expected.safetensors: inputs and the logits that transformers computes of them, in f32 on the
processor. FOLDER is `fixtures` beside this file when not given. Every number follows from SEED and
the name of the fixture and the parameter, by numpy's PCG64, so the files come out the same again.
--check makes them anew elsewhere and compares: configurations but for transformers_version, bytes
of the parameters and the inputs, logits to 5e-6.

Norms and biases are random as well, and the options are not the defaults, so that what is swapped
or forgotten shows. Needs Python's torch, transformers, safetensors and numpy.
"""
import json
import os
import shutil
import sys
import tempfile
import zlib

import numpy
import torch
import transformers
from safetensors.torch import load_file, save_file

SEED = 20261123
ROWS, COLUMNS, WORDS = 4, 16, 32
LOGITS_BOUND = 5e-6
GPT2 = {"vocab_size": WORDS, "n_positions": 24, "n_embd": 16, "n_layer": 2, "n_head": 2,
        "n_inner": 24}
BERT = {"vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 24, "max_position_embeddings": 24}
T5 = {"vocab_size": WORDS, "d_model": 16, "d_kv": 6, "d_ff": 24, "num_layers": 2, "num_heads": 2,
      "num_decoder_layers": 3, "relative_attention_num_buckets": 8,
      "relative_attention_max_distance": 12, "decoder_start_token_id": 0}
NEO = {"vocab_size": WORDS, "hidden_size": 16, "num_layers": 3, "num_heads": 2,
       "intermediate_size": 24, "max_position_embeddings": 24, "window_size": 5,
       "attention_types": [[["global", "local"], 1], [["global"], 1]]}
NEOX = {"vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 24, "max_position_embeddings": 24}
LLAMA = {"vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "intermediate_size": 24, "max_position_embeddings": 24}
# Name: class, configuration, type of the numbers, the largest file.
FIXTURES = {
    "gpt2": ("GPT2LMHeadModel", GPT2, "float32", None),
    "gpt2_untied": ("GPT2LMHeadModel", {
        **GPT2, "n_layer": 3, "activation_function": "relu",
        "tie_word_embeddings": False, "scale_attn_by_inverse_layer_idx": True,
        "layer_norm_epsilon": 1e-2}, "float32", "12KB"),
    "gpt2_unscaled": ("GPT2LMHeadModel", {
        **GPT2, "activation_function": "quick_gelu", "scale_attn_weights": False,
        "reorder_and_upcast_attn": True}, "float16", None),
    "bert_pretraining": ("BertForPreTraining", {**BERT, "layer_norm_eps": 1e-3}, "float32", None),
    "bert_masked": ("BertForMaskedLM", {**BERT, "type_vocab_size": 3, "pad_token_id": 2},
                    "bfloat16", None),
    "roberta": ("RobertaForMaskedLM", {
        **BERT, "max_position_embeddings": 26, "type_vocab_size": 1, "pad_token_id": 1,
        "layer_norm_eps": 1e-4}, "float16", None),
    "t5": ("T5ForConditionalGeneration", {**T5, "layer_norm_epsilon": 1e-2}, "float32", None),
    "t5_gated": ("T5ForConditionalGeneration", {
        **T5, "num_layers": 1, "num_decoder_layers": 2, "feed_forward_proj": "gated-silu",
        "tie_word_embeddings": False}, "float32", None),
    "t5_v1_1": ("T5ForConditionalGeneration", {
        **T5, "num_layers": 1, "num_decoder_layers": 2, "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False}, "bfloat16", None),
    "gptj": ("GPTJForCausalLM", {**GPT2, "rotary_dim": 4}, "float32", None),
    "gptj_whole_head": ("GPTJForCausalLM", {
        **GPT2, "rotary_dim": 8, "activation_function": "silu", "layer_norm_epsilon": 1e-3},
        "bfloat16", "10KB"),
    "gpt_neo": ("GPTNeoForCausalLM", {**NEO, "layer_norm_epsilon": 1e-3}, "float32", None),
    "gpt_neo_global": ("GPTNeoForCausalLM", {
        **NEO, "attention_types": [[["global"], 3]], "activation_function": "gelu",
        "tie_word_embeddings": False}, "float16", None),
    "gpt_neox": ("GPTNeoXForCausalLM", {**NEOX, "rotary_pct": 0.5}, "float32", None),
    "gpt_neox_sequential": ("GPTNeoXForCausalLM", {
        **NEOX, "rotary_pct": 1.0, "rotary_emb_base": 100, "use_parallel_residual": False,
        "attention_bias": False, "hidden_act": "gelu_new", "layer_norm_eps": 1e-3,
        "tie_word_embeddings": True}, "float32", None),
    "llama": ("LlamaForCausalLM", {**LLAMA, "tie_word_embeddings": False}, "float32", "12KB"),
    "llama_biased": ("LlamaForCausalLM", {
        **LLAMA, "head_dim": 8, "attention_bias": True, "mlp_bias": True, "rope_theta": 500.0,
        "rms_norm_eps": 1e-2, "hidden_act": "gelu", "tie_word_embeddings": True},
        "bfloat16", None),
}


# Version 4 has T5s with an output layer of their own, as the published ones of T5 1.1 are; in
# version 5 every T5 is tied, and its files are of another form.
ONLY_IN = {"t5_v1_1": 4}


def made_here():
    """Each version makes its own; version 5 all that has not another version's name."""
    major = int(transformers.__version__.split(".", maxsplit=1)[0])
    return [name for name in FIXTURES if ONLY_IN.get(name, 5) == major]


def numbers(*names):
    return numpy.random.default_rng([SEED, *(zlib.crc32(name.encode()) for name in names)])


def fill(model, fixture, dtype):
    """Every parameter at random, as a number that `dtype` holds."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if model.config.model_type == "gpt_neox":
                name = name.replace("lm_head.", "embed_out.")  # as the files call it
            drawn = numbers(fixture, name).standard_normal(tuple(parameter.shape))
            drawn = 0.3 * torch.from_numpy(drawn).to(torch.float32)
            norm = name.endswith("weight") and parameter.dim() == 1
            parameter.copy_((1 + drawn if norm else drawn).to(dtype))


def padded(fixture, name, columns, first):
    """Ids from `first` on and a mask with 1 for tokens; rows end where they like, the first is whole."""
    drawn = numbers(fixture, name)
    ids = torch.from_numpy(drawn.integers(first, WORDS, (ROWS, columns)))
    lengths = torch.from_numpy(drawn.integers(2, columns + 1, (ROWS, 1)))
    lengths[0] = columns
    return ids, (torch.arange(columns) < lengths).to(torch.int64)


def inputs_of(model, fixture):
    """What the model's forward takes, of its own number of tokens."""
    config = model.config
    pad = config.pad_token_id if config.pad_token_id is not None else 0
    ids, mask = padded(fixture, "ids", COLUMNS, 5)
    inputs = {"input_ids": ids.where(mask == 1, torch.tensor(pad)), "attention_mask": mask}
    if config.model_type == "bert":
        types = numbers(fixture, "types").integers(0, config.type_vocab_size, (ROWS, COLUMNS))
        inputs["token_type_ids"] = torch.from_numpy(types)
    if config.model_type == "t5":
        ids, mask = padded(fixture, "decoder_ids", 10, 5)
        inputs.update(decoder_input_ids=ids, decoder_attention_mask=mask)
    return inputs


def write_expected(model, fixture, folder):
    """Inputs and logits. Those after the last token of a row mean nothing."""
    inputs = inputs_of(model, fixture)
    with torch.no_grad():
        outputs = model.eval().float()(**inputs)
    logits = outputs.prediction_logits if "prediction_logits" in outputs else outputs.logits
    expected = {**inputs, "logits": logits.contiguous()}
    if "seq_relationship_logits" in outputs:
        expected["next_sentence"] = outputs.seq_relationship_logits.contiguous()
    save_file(expected, os.path.join(folder, "expected.safetensors"))
    return float(logits.abs().max())


def make(fixture, folder):
    name, options, dtype, largest = FIXTURES[fixture]
    transformers_class = getattr(transformers, name)
    dtype = getattr(torch, dtype)
    model = transformers_class(transformers_class.config_class(**options)).float()
    fill(model, fixture, dtype)
    os.makedirs(folder)
    model.to(dtype).save_pretrained(folder, **({"max_shard_size": largest} if largest else {}))
    if os.path.exists(os.path.join(folder, "generation_config.json")):
        os.remove(os.path.join(folder, "generation_config.json"))
    # Not by PyTorch's fused attention: with it version 4 forgets GPT-2's scale_attn options.
    again = transformers_class.from_pretrained(folder, attn_implementation="eager")
    return write_expected(again, fixture, folder)


def tensors_of(folder):
    found = {}
    for file in sorted(os.listdir(folder)):
        if file.endswith(".safetensors"):
            found.update(load_file(os.path.join(folder, file)))
    return found


def config_of(folder):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        return {**json.load(file), "transformers_version": None}


def check(made, committed):
    assert config_of(made) == config_of(committed), committed
    one, other = tensors_of(made), tensors_of(committed)
    assert one.keys() == other.keys(), one.keys() ^ other.keys()
    for name, tensor in one.items():
        if name in ("logits", "next_sentence"):
            furthest = float((tensor - other[name]).abs().max())
            assert furthest <= LOGITS_BOUND, (committed, name, furthest)
        else:
            assert tensor.dtype == other[name].dtype and torch.equal(tensor, other[name]), name


def main(arguments):
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures")
    only_check = "--check" in arguments
    folders = [argument for argument in arguments if argument != "--check"]
    target = folders[0] if folders else beside
    with tempfile.TemporaryDirectory() as work:
        for fixture in made_here():
            made = os.path.join(work, fixture)
            largest = make(fixture, made)
            if only_check:
                check(made, os.path.join(target, fixture))
            else:
                shutil.rmtree(os.path.join(target, fixture), ignore_errors=True)
                shutil.copytree(made, os.path.join(target, fixture))
            print(f"{fixture}: logits up to {largest:.2f}", "as before" if only_check else "")


if __name__ == "__main__":
    main(sys.argv[1:])
