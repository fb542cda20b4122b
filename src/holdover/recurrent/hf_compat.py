"""What users of Hugging Face models expect beside forward: switches, freezing, compiling, ownership."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..carries.base import Carry
from ..config import RecurrenceConfig
from ..state import State
from .checks import check_carry, check_fit
from .compile_options import compiler_options

# Values of each weight that enter the fingerprint of a model.
FINGERPRINT = 65536


class CompiledStep:
    """The compiled step and lower layers, bound to one model: a copy of the model starts without."""

    step: Callable[..., Any] | None = None
    lower: Callable[..., Any] | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> "CompiledStep":
        return CompiledStep()


class PreTrainedMixin:
    """Mixed into RecurrentModel."""

    backbone: Any
    recurrence: Carry
    settings: RecurrenceConfig
    hooks: Any
    row: Any
    enabled: bool
    recompute: str
    training: bool
    _compiled: CompiledStep
    _fingerprint: tuple[Any, str] | None
    _step: Callable[..., Any]
    _run_lower: Callable[..., Any]

    @contextmanager
    def disable_recurrence(self) -> Iterator[None]:
        """Inside, calls go straight to the stock model, as if nothing had been attached."""
        before, self.enabled = self.enabled, False
        try:
            yield
        finally:
            self.enabled = before

    @contextmanager
    def reading(
        self,
        *,
        window: int | None = None,
        overlap: int | None = None,
        memory_length: int | None = None,
    ) -> Iterator[None]:
        """Inside, windows are cut otherwise than the model was made for, or remembered for longer.

        At an overlap that it was not trained with, a pooled state leaves out the positions that the
        next window reads again, as one trained without overlap has never seen them.
        """
        before = self.settings
        changed = before.replace(
            window=before.window if window is None else window,
            overlap=before.overlap if overlap is None else overlap,
            memory_length=before.memory_length if memory_length is None else memory_length,
        )
        if "memory_length" in self.recurrence.uses and changed.memory_length is None:
            # Shorter windows do not make a shorter memory of one that was not asked to be.
            kept = None if changed.window == before.window else before.window
            changed = changed.replace(memory_length=kept)
        check_carry(changed)
        if changed.overlap != before.overlap and "pool_positions" in self.recurrence.uses:
            changed = changed.replace(pool_positions="non_overlap")
        check_fit(changed, self.backbone, self.row, len(self.hooks.layers), self.recurrence)
        self._read_as(changed)
        try:
            yield
        finally:
            self._read_as(before)

    def _read_as(self, settings: RecurrenceConfig) -> None:
        self.settings = settings
        self.recurrence.settings = settings

    def _stock(self, input_ids: Tensor, state: State | None = None, **arguments: Any) -> Any:
        """The stock model's own answer."""
        if state is not None:
            raise ValueError(
                "A state was given while the recurrence is disabled, and the stock model cannot read "
                "it: leave disable_recurrence(), or call without a state."
            )
        given = {name: value for name, value in arguments.items() if value is not None}
        return self.backbone(input_ids, **given)

    def compile_step(self, **options: Any) -> None:
        """Compile the step (and the lower layers) with torch.compile, without graph breaks.

        Windows of full width run compiled (padded ones in a form of their own, where that can be
        trusted: `misread_when_compiled`); others as they are.

        Compile the step, not the model: the loop over windows would be unrolled into one graph.
        """
        options = {"fullgraph": True, "dynamic": False, **options}
        if "backend" not in options:
            options["options"] = compiler_options()
        # With and without a past, padding and gradients: more forms than torch expects of a function.
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 32)
        self._compiled.step = torch.compile(self._step, **options)
        self._compiled.lower = torch.compile(self._run_lower, **options)

    @property
    def compiled(self) -> bool:
        """Whether steps run compiled."""
        return self._compiled.step is not None

    @contextmanager
    def uncompiled(self) -> Iterator[None]:
        """Inside, the step runs as it was written."""
        before = self._compiled.step, self._compiled.lower
        self._compiled.step = self._compiled.lower = None
        try:
            yield
        finally:
            self._compiled.step, self._compiled.lower = before

    def freeze_base(self) -> None:
        """Train only what was added (adapters inside the base keep what they were)."""
        for name, parameter in self.backbone.named_parameters():
            if "lora_" not in name:
                parameter.requires_grad_(False)

    def unfreeze_base(self) -> None:
        for parameter in self.backbone.parameters():
            parameter.requires_grad_(True)

    def parameter_counts(self) -> dict[str, int]:
        """Parameters that are trained, that were added, and all, each counted once."""
        everything = list(self.parameters())  # type: ignore[attr-defined]
        return {
            "trainable": sum(p.numel() for p in everything if p.requires_grad),
            "added": sum(p.numel() for p in self.recurrence.parameters()),
            "all": sum(p.numel() for p in everything),
        }

    def print_trainable_parameters(self) -> None:
        counts = self.parameter_counts()
        share = 100 * counts["trainable"] / counts["all"]
        print(
            f"trainable params: {counts['trainable']:,} || all params: {counts['all']:,} || "
            f"trainable%: {share:.4f} || added by holdover: {counts['added']:,}"
        )

    # Recomputing single layers would replay them after their window was closed.

    def gradient_checkpointing_enable(self, *args: Any, **kwargs: Any) -> None:
        """Recompute window by window: holdover's form of gradient checkpointing."""
        self.recompute = "window"

    def gradient_checkpointing_disable(self) -> None:
        self.recompute = "none"

    @property
    def is_gradient_checkpointing(self) -> bool:
        return self.recompute != "none"

    def get_input_embeddings(self) -> nn.Module:
        return self.backbone.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.backbone.set_input_embeddings(value)

    @property
    def vocabulary(self) -> int:
        """Ids the embeddings hold, also after they were resized."""
        return self.backbone.get_input_embeddings().num_embeddings

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Module:
        return self.backbone.resize_token_embeddings(*args, **kwargs)

    def set_output_embeddings(self, value: nn.Module) -> None:
        self.backbone.set_output_embeddings(value)

    def get_output_embeddings(self) -> nn.Module | None:
        return self.backbone.get_output_embeddings()

    # Which model a state belongs to.

    def owner(self) -> dict[str, Any]:
        """What a state of this model says of itself."""
        config = self.backbone.config
        return {
            "model_type": config.model_type,
            "hidden_size": config.hidden_size,
            "layers": len(self.hooks.layers),  # type: ignore[attr-defined]
            "vocab_size": config.vocab_size,
            **self.settings.state_fields(),
            "weights": None if self.training else self._weights(),
        }

    def adopt(self, state: State) -> State:
        """Take over a state that another model made, if its shapes fit this one."""
        with torch.no_grad():
            probe = torch.zeros(1, 1, dtype=torch.long, device=state.device)
            expected = self(probe).state  # type: ignore[operator]
        for name, tensor in expected.tensors.items():
            found = state.tensors.get(name)
            if found is None or found.shape[1:] != tensor.shape[1:]:
                shape = None if found is None else tuple(found.shape[1:])
                raise ValueError(
                    f"This state cannot be adopted: {name} has shape {shape} a row in it and "
                    f"{tuple(tensor.shape[1:])} in this model."
                )
        return replace(state, owner=self.owner())

    def _weights(self) -> str:
        """Fingerprint of the added weights and a sample of the base's, rounded so that bfloat16 and
        float32 agree; cached by version."""
        sample = [self.get_input_embeddings().weight, next(self.hooks.layers[-1].parameters())]  # type: ignore
        parameters = [*self.recurrence.parameters(), *sample]
        version = tuple((p.data_ptr(), p._version) for p in parameters)
        if self._fingerprint is None or self._fingerprint[0] != version:
            digest = hashlib.sha256()
            for parameter in parameters:
                rounded = (
                    parameter.detach().flatten()[:FINGERPRINT].to(torch.bfloat16).cpu().contiguous()
                )
                digest.update(rounded.view(torch.int16).numpy().tobytes())
            self._fingerprint = (version, digest.hexdigest()[:16])
        return self._fingerprint[1]

    def _touch_added(self, loss: Tensor) -> Tensor:
        """Give every added weight a gradient, zero where a text was one window long: data-parallel
        training waits for all of them."""
        added = [p for p in self.recurrence.parameters() if p.requires_grad]
        if not added or not loss.requires_grad:
            return loss
        return loss + 0.0 * torch.stack([p.sum().to(loss.dtype) for p in added]).sum()
