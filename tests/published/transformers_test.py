#!/usr/bin/env python3
"""usage: transformers_test.py PROGRAM LOGITS_TEST REPOSITORY

The way back: jobs of every family are trained for a few steps and exported; transformers loads the
folders, and its logits are those of the checkpoints within 1e-5 (published_logits, which reads the
checkpoints, is run beside what transformers said of the folders). The jobs' options are not the
defaults. Exits with 77 where Python has no torch and transformers.
"""
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile

PROGRAM, LOGITS_TEST, REPOSITORY = sys.argv[1:]
sys.dont_write_bytecode = True
try:
    import transformers
    import make  # beside this file
except ImportError as missing:
    print(f"skipped: {missing}; this Python needs torch, transformers, safetensors and numpy")
    sys.exit(77)

STEPS, SEQUENCE, WORDS = 4, 24, 400
DECODER = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
# Name: class, preset, options.
JOBS = {
    "gpt2": ("GPT2LMHeadModel", "gpt-tiny", {"n_embd": 32}),
    "gpt2_untied": ("GPT2LMHeadModel", "gpt-tiny", {
        "n_embd": 32, "tie_word_embeddings": False, "activation_function": "relu", "n_inner": 48,
        "scale_attn_by_inverse_layer_idx": True, "layer_norm_epsilon": 1e-3}),
    "bert": ("BertForPreTraining", "bert-tiny", {"layer_norm_eps": 1e-3}),
    "bert_masked": ("BertForMaskedLM", "bert-tiny", {"next_sentence": False}),
    "roberta": ("RobertaForMaskedLM", "roberta-base", {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 48}),
    "t5": ("T5ForConditionalGeneration", "t5-tiny", {
        "num_decoder_layers": 1, "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 12}),
    "t5_gated": ("T5ForConditionalGeneration", "t5-tiny", {
        "feed_forward_proj": "gated-gelu", "scale_decoder_outputs": False}),
    "t5_v1_1": ("T5ForConditionalGeneration", "t5-tiny", {
        "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "gptj": ("GPTJForCausalLM", "gptj-tiny", {**DECODER, "rotary_dim": 4}),
    "gpt_neo": ("GPTNeoForCausalLM", "gpt-neo-tiny", {**DECODER, "window_size": 5}),
    "gpt_neox": ("GPTNeoXForCausalLM", "gpt-neox-tiny", {
        **DECODER, "rotary_dim": 4, "rope_theta": 500.0, "hidden_act": "gelu"}),
    "gpt_neox_sequential": ("GPTNeoXForCausalLM", "gpt-neox-tiny", {
        **DECODER, "use_parallel_residual": False, "attention_bias": False,
        "norm_epsilon": 1e-3}),
    "llama": ("LlamaForCausalLM", "llama-tiny", {
        **DECODER, "num_key_value_heads": 2, "head_dim": 16, "rope_theta": 500.0,
        "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "llama_plain": ("LlamaForCausalLM", "llama-tiny", {**DECODER, "num_key_value_heads": 2}),
}


def call(*command, **environment):
    done = subprocess.run(command, capture_output=True, text=True, timeout=200,
                          env={**os.environ, **environment})
    assert done.returncode == 0, (command, done.returncode, done.stdout, done.stderr)
    return done.stdout


def train(name, preset, options):
    job = {
        "parallel": {"microbatches": 1, "timeout_seconds": 60, "seed": 11},
        "model": {"name": preset, "options": options},
        "data": {"directory": "data", "sequence": SEQUENCE, "batch": 8},
        # Far enough from the beginning that norms and biases are no ones and zeros.
        "optimizer": {"learning_rate": 3e-2, "warmup_steps": 0, "decay": "constant"},
        "checkpoint": {"directory": f"{name}_checkpoints"}, "steps": STEPS,
    }
    with open(name + ".json", "w", encoding="utf-8") as file:
        json.dump(job, file)
    call(PROGRAM, "launch", "-n", "1", "--", PROGRAM, "train", name + ".json")
    call(PROGRAM, "export", f"{name}_checkpoints", f"{name}_exported")


def load(name, transformers_class):
    """As transformers loads the folder; every parameter must come from it."""
    model, info = getattr(transformers, transformers_class).from_pretrained(
        f"{name}_exported", attn_implementation="eager", output_loading_info=True)
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[key], (name, key, info[key])
    with open(f"{name}_exported/config.json", encoding="utf-8") as file:
        assert json.load(file)["architectures"] == [transformers_class]
    return model


def main():
    call(PROGRAM, "data", "prepare", "--output", "data", "--vocab-size", str(WORDS), "--text",
         REPOSITORY + "/README.md", *sorted(glob.glob(REPOSITORY + "/docs/*.md")))
    for name, (transformers_class, preset, options) in JOBS.items():
        train(name, preset, options)
        os.makedirs(f"published/{name}")
        largest = make.write_expected(load(name, transformers_class), name, f"published/{name}")
        shutil.move(f"{name}_checkpoints", f"published/{name}/weights")
        print(f"{name}: exported, loaded; logits up to {largest:.1f}", flush=True)
    print(call(LOGITS_TEST, TESSERA_PUBLISHED=os.path.abspath("published"), OMP_NUM_THREADS="1"))
    print(f"transformers {transformers.__version__}")


transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
with tempfile.TemporaryDirectory() as work:
    os.chdir(work)
    main()
