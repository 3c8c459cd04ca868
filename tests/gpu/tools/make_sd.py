"""Writes a Stable Diffusion 1.5 checkpoint with random weights: every tensor of the real one, in its shape, in f16.

    make_sd.py FILE.safetensors [--seed 1]          about 2.1 GB; needs numpy

The names are those of the original checkpoints. Weights are scaled by their inputs, norms keep what passes
through them, and biases are zero, so that no value of a run is infinite. The images are noise; the same seed
gives the same file.
"""
import argparse
import json
import math
import os
import struct

import numpy as np

UNET = "model.diffusion_model."
TEXT = "cond_stage_model.transformer.text_model."
VAE = "first_stage_model."
EMBEDDING, CONTEXT = 1280, 768  # of the time step, of the text


class Shapes(dict):
    """Tensors by name; each method adds those of one layer."""

    def linear(self, name, inputs, outputs, bias=True):
        self[f"{name}.weight"] = (outputs, inputs)
        if bias:
            self[f"{name}.bias"] = (outputs,)

    def conv(self, name, inputs, outputs, size=3):
        self[f"{name}.weight"] = (outputs, inputs, size, size)
        self[f"{name}.bias"] = (outputs,)

    def norm(self, name, width):
        self[f"{name}.weight"] = self[f"{name}.bias"] = (width,)

    def attention(self, name, width, context):
        for part, inputs in (("to_q", width), ("to_k", context), ("to_v", context)):
            self.linear(f"{name}.{part}", inputs, width, bias=False)
        self.linear(f"{name}.to_out.0", width, width)

    def residual(self, name, inputs, outputs):
        """A residual block of the U-Net."""
        self.norm(f"{name}.in_layers.0", inputs)
        self.conv(f"{name}.in_layers.2", inputs, outputs)
        self.linear(f"{name}.emb_layers.1", EMBEDDING, outputs)
        self.norm(f"{name}.out_layers.0", outputs)
        self.conv(f"{name}.out_layers.3", outputs, outputs)
        if inputs != outputs:
            self.conv(f"{name}.skip_connection", inputs, outputs, 1)

    def transformer(self, name, width):
        """A transformer over the pixels."""
        self.norm(f"{name}.norm", width)
        self.conv(f"{name}.proj_in", width, width, 1)
        block = f"{name}.transformer_blocks.0"
        self.attention(f"{block}.attn1", width, width)
        self.attention(f"{block}.attn2", width, CONTEXT)
        self.linear(f"{block}.ff.net.0.proj", width, 8 * width)
        self.linear(f"{block}.ff.net.2", 4 * width, width)
        for number in (1, 2, 3):
            self.norm(f"{block}.norm{number}", width)
        self.conv(f"{name}.proj_out", width, width, 1)

    def resnet(self, name, inputs, outputs):
        """A residual block of the autoencoder."""
        self.norm(f"{name}.norm1", inputs)
        self.conv(f"{name}.conv1", inputs, outputs)
        self.norm(f"{name}.norm2", outputs)
        self.conv(f"{name}.conv2", outputs, outputs)
        if inputs != outputs:
            self.conv(f"{name}.nin_shortcut", inputs, outputs, 1)


def unet(shapes, channels=320, multiples=(1, 2, 4, 4), blocks=2):
    shapes.linear(f"{UNET}time_embed.0", channels, EMBEDDING)
    shapes.linear(f"{UNET}time_embed.2", EMBEDDING, EMBEDDING)
    shapes.conv(f"{UNET}input_blocks.0.0", 4, channels)
    width, widths, at, last = channels, [channels], 1, len(multiples) - 1
    for level, multiple in enumerate(multiples):
        for _ in range(blocks):
            shapes.residual(f"{UNET}input_blocks.{at}.0", width, multiple * channels)
            width = multiple * channels
            if level != last:
                shapes.transformer(f"{UNET}input_blocks.{at}.1", width)
            widths.append(width)
            at += 1
        if level != last:
            shapes.conv(f"{UNET}input_blocks.{at}.0.op", width, width)
            widths.append(width)
            at += 1
    shapes.residual(f"{UNET}middle_block.0", width, width)
    shapes.transformer(f"{UNET}middle_block.1", width)
    shapes.residual(f"{UNET}middle_block.2", width, width)
    at = 0
    for level in range(last, -1, -1):
        for block in range(blocks + 1):
            shapes.residual(f"{UNET}output_blocks.{at}.0", width + widths.pop(), multiples[level] * channels)
            width = multiples[level] * channels
            if level != last:
                shapes.transformer(f"{UNET}output_blocks.{at}.1", width)
            if level and block == blocks:
                shapes.conv(f"{UNET}output_blocks.{at}.{1 if level == last else 2}.conv", width, width)
            at += 1
    shapes.norm(f"{UNET}out.0", width)
    shapes.conv(f"{UNET}out.2", width, 4)


def text_encoder(shapes, layers=12, hidden=3072):
    shapes[f"{TEXT}embeddings.token_embedding.weight"] = (49408, CONTEXT)
    shapes[f"{TEXT}embeddings.position_embedding.weight"] = (77, CONTEXT)
    for layer in range(layers):
        name = f"{TEXT}encoder.layers.{layer}"
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            shapes.linear(f"{name}.self_attn.{part}", CONTEXT, CONTEXT)
        shapes.linear(f"{name}.mlp.fc1", CONTEXT, hidden)
        shapes.linear(f"{name}.mlp.fc2", hidden, CONTEXT)
        shapes.norm(f"{name}.layer_norm1", CONTEXT)
        shapes.norm(f"{name}.layer_norm2", CONTEXT)
    shapes.norm(f"{TEXT}final_layer_norm", CONTEXT)


def autoencoder(shapes, channels=128, multiples=(1, 2, 4, 4), blocks=2):
    most = channels * multiples[-1]

    def middle(name):
        shapes.resnet(f"{name}.mid.block_1", most, most)
        shapes.norm(f"{name}.mid.attn_1.norm", most)
        for part in ("q", "k", "v", "proj_out"):
            shapes.conv(f"{name}.mid.attn_1.{part}", most, most, 1)
        shapes.resnet(f"{name}.mid.block_2", most, most)

    name = f"{VAE}encoder"
    shapes.conv(f"{name}.conv_in", 3, channels)
    width = channels
    for level, multiple in enumerate(multiples):
        for block in range(blocks):
            shapes.resnet(f"{name}.down.{level}.block.{block}", width, multiple * channels)
            width = multiple * channels
        if level != len(multiples) - 1:
            shapes.conv(f"{name}.down.{level}.downsample.conv", width, width)
    middle(name)
    shapes.norm(f"{name}.norm_out", most)
    shapes.conv(f"{name}.conv_out", most, 8)
    name = f"{VAE}decoder"
    shapes.conv(f"{name}.conv_in", 4, most)
    middle(name)
    for level in range(len(multiples) - 1, -1, -1):
        for block in range(blocks + 1):
            shapes.resnet(f"{name}.up.{level}.block.{block}", width, multiples[level] * channels)
            width = multiples[level] * channels
        if level:
            shapes.conv(f"{name}.up.{level}.upsample.conv", width, width)
    shapes.norm(f"{name}.norm_out", width)
    shapes.conv(f"{name}.conv_out", width, 3)
    shapes.conv(f"{VAE}quant_conv", 8, 8, 1)
    shapes.conv(f"{VAE}post_quant_conv", 4, 4, 1)


def values(rng, name, shape):
    """One tensor: random, scaled by its inputs; norms are one, biases zero."""
    if len(shape) == 1:
        return np.full(shape, 0.0 if name.endswith("bias") else 1.0, dtype="<f2")
    scale = 0.02 if "embedding" in name else 0.7 / math.sqrt(math.prod(shape[1:]))
    return (rng.standard_normal(shape, dtype=np.float32) * scale).astype("<f2")


def write(path, seed):
    """The checkpoint, under its name only when it is whole."""
    shapes, header, at = Shapes(), {}, 0
    unet(shapes)
    text_encoder(shapes)
    autoencoder(shapes)
    for name, shape in shapes.items():
        end = at + 2 * math.prod(shape)
        header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng, part = np.random.default_rng(seed), f"{path}.part"
    with open(part, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in shapes.items():
            file.write(values(rng, name, shape).tobytes())
    os.replace(part, path)
    return len(shapes), at


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("file")
    arguments.add_argument("--seed", type=int, default=1)
    k = arguments.parse_args()
    count, size = write(k.file, k.seed)
    print(f"{k.file}: {count} tensors, {size / 2**20:.0f} MiB")


main()
