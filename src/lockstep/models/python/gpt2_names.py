"""The state of benchmarks/python/models.py's GPT under Hugging Face's names, whose linear weights are [in, out]."""

NAMES = [("tokens.", "transformer.wte."), ("positions.", "transformer.wpe."), ("blocks.", "transformer.h."),
         (".norm1.", ".ln_1."), (".qkv.", ".attn.c_attn."), (".proj.", ".attn.c_proj."), (".norm2.", ".ln_2."),
         (".up.", ".mlp.c_fc."), (".down.", ".mlp.c_proj."), ("norm.", "transformer.ln_f."), ("head.", "lm_head.")]
TRANSPOSED = tuple(f".{name}.weight" for name in ("c_attn", "c_proj", "c_fc"))


def hugging_face(state):
    """Rename and transpose a dict of the GPT's tensors; order stays."""
    out = {}
    for name, tensor in state.items():
        for ours, theirs in NAMES:
            if ours.startswith(".") or name.startswith(ours):
                name = name.replace(ours, theirs, 1)
        out[name] = tensor.t() if name.endswith(TRANSPOSED) else tensor
    return out


def referee(state):
    """Undo hugging_face()."""
    out = {}
    for name, tensor in state.items():
        tensor = tensor.t() if name.endswith(TRANSPOSED) else tensor
        for ours, theirs in NAMES:
            if theirs.startswith(".") or name.startswith(theirs):
                name = name.replace(theirs, ours, 1)
        out[name] = tensor
    return out
