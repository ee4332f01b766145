"""One rank of trainers.t: Hugging Face's Trainer, which does not know of gradcomp."""

import sys

import torch
import transformers
from torch import nn


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 8))

    def forward(self, x, labels):
        return {"loss": nn.functional.mse_loss(self.net(x), labels)}


class Data(torch.utils.data.Dataset):
    def __init__(self):
        draw = torch.Generator().manual_seed(1)
        self.x = torch.randn(2048, 32, generator=draw)
        self.y = torch.tanh(self.x @ torch.randn(32, 8, generator=draw) / 6)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"x": self.x[i], "labels": self.y[i]}


torch.set_num_threads(1)
torch.manual_seed(0)
arguments = transformers.TrainingArguments(sys.argv[1], max_steps=40, use_cpu=True, report_to=[], save_strategy="no",
                                           per_device_train_batch_size=16, ddp_backend="gloo", disable_tqdm=True)
transformers.Trainer(Student(), arguments, train_dataset=Data()).train()
