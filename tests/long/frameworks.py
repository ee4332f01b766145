"""One rank of frameworks.t: programs as people write them with frameworks. None of them knows of gradcomp. argv names one, and the backend
that it asks for. It prints the losses of this rank to the bit, what the framework has made of the model, and of which backend the group of
all ranks is; or the sentence with which the framework refuses."""

import os
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

warnings.simplefilter("ignore")
torch.set_num_threads(1)
BACKEND = sys.argv[2]
STEPS, RANK, SIZE = 12, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
losses = []


def told(loss):
    losses.append(loss.item())
    return loss


def tokens(rows=8, words=64, length=32, seed=RANK):
    """Each word is three after the one before."""
    first = torch.randint(words, (rows, 1), generator=torch.Generator().manual_seed(seed))
    return (first + 3 * torch.arange(length)) % words


class Words(torch.utils.data.Dataset):
    def __len__(self):
        return 8 * STEPS * SIZE

    def __getitem__(self, i):
        row = tokens(1, seed=i)[0]
        return {"input_ids": row, "labels": row}


def llama():
    import transformers

    torch.manual_seed(1)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=64, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
                                                                  num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64))


def descend(model, loss_of, optimizer=None):
    """A training loop of the program's own."""
    optimizer = optimizer or torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    for step in range(STEPS):
        optimizer.zero_grad()
        told(loss_of(model, step)).backward()
        optimizer.step()


# Lightning.


def lightning_module(sharding=None):
    import lightning

    class Regression(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.net = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 64))

        def configure_model(self):
            if sharding is not None and not isinstance(self.net, torch.distributed.fsdp.FSDPModule):
                sharding(self.net, self.device_mesh["data_parallel"])

        def training_step(self, batch, _):
            return told((self.net(batch) - batch.flip(1)).square().mean())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    return Regression()


def lightning_fit(strategy, sharding=None):
    import lightning

    data = torch.randn(16 * SIZE, 64, generator=torch.Generator().manual_seed(2)).repeat(STEPS, 1)  # the same batch each step
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(accelerator="cpu", devices=SIZE, strategy=strategy, max_epochs=1, logger=False, enable_checkpointing=False,
                                    enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder)
        trainer.fit(lightning_module(sharding), torch.utils.data.DataLoader(data, batch_size=16))
    return trainer.strategy.model


def lightning_ddp():
    from lightning.pytorch.strategies import DDPStrategy

    return lightning_fit(DDPStrategy(process_group_backend=BACKEND))


def lightning_fsdp():
    from lightning.pytorch.strategies import FSDPStrategy

    return lightning_fit(FSDPStrategy(process_group_backend=BACKEND))


def lightning_fsdp2():
    """What Lightning has for fully_shard()."""
    from lightning.pytorch.strategies import ModelParallelStrategy
    from torch.distributed.fsdp import fully_shard

    def sharding(net, mesh):
        for layer in net:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(net, mesh=mesh)

    return lightning_fit(ModelParallelStrategy(data_parallel_size=SIZE, tensor_parallel_size=1, process_group_backend=BACKEND), sharding)


# Transformers.


def begin_before_accelerate():
    """For a CPU Accelerate takes no backend by name but Gloo, and any group that is there."""
    if BACKEND != "gloo":
        dist.init_process_group(BACKEND)


def trainer(model, **more):
    import transformers

    class Told(transformers.Trainer):
        def compute_loss(self, *given, **named):
            return told(super().compute_loss(*given, **named))

    begin_before_accelerate()
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(folder, max_steps=STEPS, use_cpu=True, report_to=[], save_strategy="no", learning_rate=3e-3,
                                                   per_device_train_batch_size=8, disable_tqdm=True, **more)
        made = Told(model, arguments, train_dataset=Words())
        made.train()
    return made.model_wrapped


def trainer_ddp():
    return trainer(llama())


def trainer_fsdp():
    return trainer(llama(), fsdp=True)


# peft.


def lora():
    import peft

    torch.manual_seed(1)
    return peft.get_peft_model(llama(), peft.LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", init_lora_weights=True))


def causal(model, step):
    rows = tokens(seed=step * SIZE + RANK)
    return model(input_ids=rows, labels=rows).loss


def lora_trainer():
    return trainer(lora())


def lora_fsdp2():
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group(BACKEND)
    model = lora()
    for layer in model.base_model.model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    descend(model, causal)
    return model


# Experts.


def experts_fairscale():
    """GShard's layer of FairScale, an expert on each rank; the gates are replicated."""
    from fairscale.nn.moe import MOELayer, Top2Gate

    dist.init_process_group(BACKEND)
    torch.manual_seed(1)
    gate, before = Top2Gate(256, SIZE), nn.Linear(256, 256)
    after = nn.Linear(256, 256)
    torch.manual_seed(100 + RANK)
    expert = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
    for p in expert.parameters():
        p.expert = True
    model = nn.Sequential(before, MOELayer(gate, expert), after)
    shared = [p for p in model.parameters() if not hasattr(p, "expert")]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x = torch.randn(4, 8 * SIZE, 256, generator=torch.Generator().manual_seed(RANK))
    torch.manual_seed(RANK)  # the gates draw
    for _ in range(STEPS):
        optimizer.zero_grad()
        told((model(x) - x.flip(2)).square().mean()).backward()
        for p in shared:
            dist.all_reduce(p.grad)
            p.grad /= SIZE
        optimizer.step()
    return model


def experts_deepspeed():
    """DeepSpeed's layer, four experts on two ranks, below its ZeRO stage 1."""
    import deepspeed
    from deepspeed.moe.layer import MoE
    from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer

    deepspeed.init_distributed(BACKEND)
    torch.manual_seed(1)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.after = nn.Linear(256, 256), nn.Linear(256, 256)
            self.experts = MoE(256, nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)), num_experts=4, ep_size=2, k=1,
                               use_rts=False)

        def forward(self, x):
            return self.after(self.experts(self.before(x))[0])

    model = Model()
    groups = split_params_into_different_moe_groups_for_optimizer({"params": list(model.parameters()), "name": "all"})
    config = {"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "Adam", "params": {"lr": 3e-3, "torch_adam": True}},
              "zero_optimization": {"stage": 1}}
    engine, *_ = deepspeed.initialize(model=model, model_parameters=groups, config=config)
    x = torch.randn(4, 32, 256, generator=torch.Generator().manual_seed(RANK))
    torch.manual_seed(RANK)  # the gates draw
    for _ in range(STEPS):
        engine.backward(told((engine(x) - x.flip(2)).square().mean()))
        engine.step()
    return engine


# DeepSpeed without experts.


def zero(stage):
    import deepspeed

    deepspeed.init_distributed(BACKEND)
    config = {"train_micro_batch_size_per_gpu": 8, "optimizer": {"type": "Adam", "params": {"lr": 3e-3, "torch_adam": True}},
              "zero_optimization": {"stage": stage}}
    model = llama()
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    for step in range(STEPS):
        engine.backward(told(causal(engine, step)))
        engine.step()
    return engine


def zero1():
    return zero(1)


def zero3():
    return zero(3)


# Accelerate.


def accelerate():
    from accelerate import Accelerator

    begin_before_accelerate()
    accelerator = Accelerator(cpu=True)
    model = llama()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model, optimizer = accelerator.prepare(model, optimizer)
    for step in range(STEPS):
        optimizer.zero_grad()
        accelerator.backward(told(causal(model, step)))
        optimizer.step()
    return model


def accelerate_named():
    from accelerate import Accelerator, InitProcessGroupKwargs

    Accelerator(cpu=True, kwargs_handlers=[InitProcessGroupKwargs(backend=BACKEND)])


# Sparse gradients.


def sparse():
    """PyTorch Geometric's TransE, whose table of embeddings has sparse gradients."""
    from torch_geometric.nn.kge import TransE

    dist.init_process_group(BACKEND)
    torch.manual_seed(1)
    model = DistributedDataParallel(TransE(5000, 10, 32, sparse=True))
    optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.02)
    for step in range(STEPS):
        draw = torch.Generator().manual_seed(SIZE * (step % 2) + RANK)
        head, relation = torch.randint(5000, (512,), generator=draw), torch.randint(10, (512,), generator=draw)
        tail, other = (head + 7 * relation) % 5000, torch.randint(5000, (512,), generator=draw)
        optimizer.zero_grad()
        scores = model(torch.cat([head, head]), torch.cat([relation, relation]), torch.cat([tail, other]))
        told(nn.functional.margin_ranking_loss(scores[:512], scores[512:], torch.ones(512), margin=1.0)).backward()
        optimizer.step()
    return model


def main():
    try:
        model = globals()[sys.argv[1]]()
    except (ValueError, RuntimeError, NotImplementedError, TypeError) as e:
        if losses:
            raise
        import traceback

        traceback.print_exc()
        print("refused", type(e).__name__, " ".join(str(e).split()))
        return
    print("losses", *map(float.hex, losses))
    print("model", type(model).__name__)
    print("backend", dist.get_backend())
    if "gradcomp.backend" in sys.modules:  # what the program has sent through it, which it does not know
        for row in sys.modules["gradcomp.backend"].stats(plain=True):
            print("row", row)
    sys.stdout.flush()
    del model
    dist.barrier()
    dist.destroy_process_group()


main()
