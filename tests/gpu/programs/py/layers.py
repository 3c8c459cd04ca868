"""The model of the scripts here: layers of attention over the rows, then an MLP; plain operators, about 16 kernels each."""
import torch

WIDTH, HEADS = 256, 4


class Layer(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, width)

    def forward(self, x):
        rows, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(rows, 3, self.heads, width // self.heads).permute(1, 2, 0, 3)
        weights = torch.softmax(q @ k.transpose(1, 2) * (width // self.heads) ** -0.5, dim=-1)
        x = x + self.out((weights @ v).transpose(0, 1).reshape(rows, width))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x))))


def stack(depth):
    """So many layers on the GPU, the same weights for the same seed."""
    return torch.nn.Sequential(*(Layer(WIDTH, HEADS) for _ in range(depth))).cuda().eval()
