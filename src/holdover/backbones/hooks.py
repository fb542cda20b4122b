"""Seams: the places of a stock model where holdover reads and inserts, all of them hooks.

* Nothing of the model is replaced: while no window is open the hooks do nothing, and removing them
  leaves the very object that came in.
* What a window reads (`reading`) and leaves behind (`trace`) is set when it opens and cleared when it
  closes; between windows there is no state here.
"""

from typing import Any

import torch
from torch import Tensor, nn

from ..carries.base import Carry, CarryInputs, StepTrace
from ..windows import Window
from .attention import argument_names, by_name, with_changes
from .rsa import RSAHook
from .skip_layers import SkipLayers


class Hooks:
    """All hooks of one attached model."""

    # Set for a bidirectional model whose head predicts the next token.
    reads_left_to_right = False

    def __init__(self, model: Any, row: Any, carry: Carry, insert_layers: list[int]) -> None:
        self.model = model
        self.row = row
        self.carry = carry
        self.base = model.base_model.get_submodule(row.base)
        self.layers: list[nn.Module] = list(self.base.get_submodule(row.layers))
        self.insert_layers = insert_layers
        self.rsa: list[RSAHook] = []
        self.embedding = self.base.get_input_embeddings()
        self.reading: CarryInputs | None = None
        self.trace: StepTrace | None = None
        self.window: Window | None = None
        self.last_layer: Tensor | None = None
        self.head_input: Tensor | None = None  # what the vocabulary projection was given
        self.given_mask: Tensor | None = None  # [B, positions] as the base was given it
        # Positions of the open window that were read before and are in a cache.
        self.past = 0
        self.skip = SkipLayers(self)
        self._handles: list[Any] = []

    @property
    def fused_causal(self) -> bool:
        # Asked anew each time: the implementation of a live model can be changed.
        return self.row.causal and self.model.config._attn_implementation == "sdpa"

    def attach(self) -> None:
        for index in self.insert_layers:
            layer = self.layers[index]
            hook = self.row.attention_hook(
                self, layer, layer.get_submodule(self.row.attention), self._norm(layer)
            )
            self._handles += hook.attach()
        self._handles += [hook.attach() for hook in self.rsa]
        for index, layer in enumerate(self.layers):
            self._handles += [
                layer.register_forward_pre_hook(BeforeLayer(self, index), with_kwargs=True),
                layer.register_forward_hook(AfterLayer(self, index)),
            ]
        head = linear_head(self.model)
        if head is not None:
            self._handles.append(head.register_forward_pre_hook(BeforeHead(self)))
        self._handles += [
            self.base.register_forward_pre_hook(BeforeBase(self), with_kwargs=True),
            self.base.register_forward_hook(AfterBase(self)),
        ]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _norm(self, layer: nn.Module) -> nn.Module | None:
        row, config = self.row, self.model.config
        if row.norm is None or (row.norm_if and not getattr(config, row.norm_if)):
            return None
        return layer.get_submodule(row.norm)

    def prepared(self, reading: CarryInputs, batch: int) -> CarryInputs:
        """With what can be computed once for a window, however many pieces it is read in."""
        return reading

    def open(self, window: Window, reading: CarryInputs, trace: StepTrace) -> None:
        self.window, self.reading, self.trace = window, reading, trace
        if self.carry.needs_layer_inputs:
            trace.layer_inputs = []

    def close(self) -> None:
        self.window = self.reading = self.trace = self.last_layer = self.head_input = None
        self.given_mask = None
        self.skip.stored = None

    # What the hooks do; architectures with another layout override these.

    def before_base(self, named: dict[str, Any]) -> dict[str, Any]:
        reading, window = self.reading, self.window
        assert reading is not None and window is not None
        if reading.prefix is None or reading.suffix is None:
            return named
        tokens = self.embedding(named.pop("input_ids"))
        named["inputs_embeds"] = self._arrange(
            torch.cat([reading.prefix.to(tokens.dtype), tokens, reading.suffix.to(tokens.dtype)], 1)
        )
        named["attention_mask"] = self._mask_with_memory(tokens)
        if named.get("token_type_ids") is not None:
            slots = reading.prefix.shape[1]
            padded = nn.functional.pad(named["token_type_ids"], (slots, slots))
            named["token_type_ids"] = self._arrange(padded)
        return named

    def before_layer(self, index: int, named: dict[str, Any]) -> dict[str, Any]:
        """Arguments of the layer to be changed."""
        if self.carry.needs_layer_inputs:
            assert self.trace is not None and self.trace.layer_inputs is not None
            self.trace.layer_inputs.append(self.layer_input(named))
        if named.get("attention_mask") is not None and self.fused_causal and self._unmasked(index):
            # Under compilation transformers builds the causal mask it would otherwise leave out,
            # and the fused causal kernel takes none.
            return {"attention_mask": None}
        return {}

    def after_layer(self, index: int, output: Any) -> None:
        trace = self.trace
        assert trace is not None
        last = index == len(self.layers) - 1
        if last:
            self.last_layer = self.layer_output(output)
        elif self.carry.wants(index) and not self.skip.skips(index):
            hidden = self.layer_output(output)
            trace.partial = self.carry.observe(trace.partial, index, hidden, trace.length)

    def after_base(self, output: Any) -> Any:
        trace, reading = self.trace, self.reading
        assert trace is not None and reading is not None
        trace.finished = True
        last = self.final_hidden(output)
        index = len(self.layers) - 1
        if self.carry.wants(index) and not self.skip.skips(index):
            trace.partial = self.carry.observe(trace.partial, index, last, trace.length)
        if reading.prefix is not None and reading.suffix is not None:
            trace.suffix = self._suffix_of(last)
            return self._without_memory(output, reading.prefix.shape[1])
        return output

    def layer_input(self, named: dict[str, Any]) -> Tensor:
        """[B, T, k]"""
        return named["hidden_states"]

    def layer_output(self, output: Any) -> Tensor:
        """[B, T, k]"""
        return output if isinstance(output, Tensor) else output[0]

    def pass_through(self, named: dict[str, Any], stored: Tensor | None) -> Any:
        """What a skipped layer returns: something stored, or its input."""
        hidden = named["hidden_states"] if stored is None else stored
        return (hidden,) if self.row.layer_returns_tuple else hidden

    def final_hidden(self, output: Any) -> Tensor:
        """[B, T, k] output of the last layer: after the final norm, as transformers lists it,
        except where the model narrows it afterwards (OPT-350m)."""
        last = output.last_hidden_state
        assert self.last_layer is not None
        return last if last.shape[-1] == self.last_layer.shape[-1] else self.last_layer

    def hidden_states(self, output: Any) -> tuple[Tensor, ...]:
        """(L + 1) x [B, T, k], as transformers lists them."""
        return output.hidden_states

    # Memory tokens: [read, tokens, write, padding] in every row.

    def _arrange(self, values: Tensor) -> Tensor:
        """values [B, m + T + m, ...] with padding moved behind the write positions."""
        order = self._order(values.shape[1])
        if order is None:
            return values
        index = order.reshape(*order.shape, *[1] * (values.ndim - 2)).expand(
            -1, -1, *values.shape[2:]
        )
        return values.gather(1, index)

    def _order(self, positions: int) -> Tensor | None:
        """[B, m + T + m] for each place the position of the unarranged row it takes."""
        assert self.window is not None and self.reading is not None
        if self.window.mask is None:
            return None
        assert self.reading.prefix is not None
        slots = self.reading.prefix.shape[1]
        end = self.window.mask.sum(1, keepdim=True) + slots
        place = torch.arange(positions, device=end.device).expand(end.shape[0], -1)
        written = place - end + positions - slots
        return torch.where(
            place < end, place, torch.where(place < end + slots, written, place - slots)
        )

    def _mask_with_memory(self, tokens: Tensor) -> Tensor | None:
        reading, window = self.reading, self.window
        assert reading is not None and window is not None and reading.prefix is not None
        if reading.visible is None and (window.mask is None or self.row.causal):
            return None
        batch, length = tokens.shape[:2]
        seen = torch.ones(
            batch, length + 2 * reading.prefix.shape[1], dtype=torch.long, device=tokens.device
        )
        slots = reading.prefix.shape[1]
        if window.mask is not None:
            seen[:, slots : slots + length] = window.mask.long()
        seen = self._arrange(seen)
        if reading.visible is not None:
            seen[:, :slots] = reading.visible[:, None].long()
        return seen

    def _suffix_of(self, hidden: Tensor) -> Tensor:
        """[B, m, k] outputs of the write positions."""
        assert self.window is not None and self.reading is not None
        assert self.reading.prefix is not None
        slots = self.reading.prefix.shape[1]
        if self.window.mask is None:
            # A copy: a view would keep the whole window's output alive as part of the state.
            return hidden[:, -slots:].clone()
        first = self.window.mask.sum(1, keepdim=True) + slots
        index = first + torch.arange(slots, device=hidden.device)
        return hidden.gather(1, index[..., None].expand(-1, -1, hidden.shape[-1]))

    def _without_memory(self, output: Any, slots: int) -> Any:
        changed = dict(output.items())
        changed["last_hidden_state"] = output.last_hidden_state[:, slots:-slots]
        if output.get("hidden_states") is not None:
            changed["hidden_states"] = tuple(
                hidden[:, slots:-slots] for hidden in output.hidden_states
            )
        return type(output)(**changed)

    def _unmasked(self, index: int) -> bool:
        """Whether plain causal attention without a mask is right for this layer and window."""
        assert self.window is not None and self.reading is not None
        if self.past:
            return False
        if self.reading.prefix is not None and self.reading.visible is not None:
            return False
        attention = self.layers[index].get_submodule(self.row.attention)
        stock = getattr(self.model.config, "sliding_window", None)
        limit = getattr(attention, "sliding_window", stock)
        length = self.window.input_ids.shape[1] + self.carry.extra_positions
        return limit is None or length < limit


class _Hook:
    """A hook that does nothing while no window is open. An object, so that deep copies get their own."""

    def __init__(self, hooks: Hooks, module: nn.Module) -> None:
        self.hooks = hooks
        self.names = argument_names(module)


class BeforeBase(_Hook):
    def __init__(self, hooks: Hooks) -> None:
        super().__init__(hooks, hooks.base)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]):
        if self.hooks.trace is None:
            return None
        named = self.hooks.before_base(by_name(self.names, args, kwargs))
        self.hooks.given_mask = named.get("attention_mask")
        return (), named


class AfterBase(_Hook):
    def __init__(self, hooks: Hooks) -> None:
        super().__init__(hooks, hooks.base)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any):
        return None if self.hooks.trace is None else self.hooks.after_base(output)


class BeforeLayer(_Hook):
    def __init__(self, hooks: Hooks, index: int) -> None:
        super().__init__(hooks, hooks.layers[index])
        self.index = index

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]):
        if self.hooks.trace is None:
            return None
        changes = self.hooks.before_layer(self.index, by_name(self.names, args, kwargs))
        return with_changes(self.names, args, kwargs, changes) if changes else None


class AfterLayer(_Hook):
    def __init__(self, hooks: Hooks, index: int) -> None:
        super().__init__(hooks, hooks.layers[index])
        self.index = index

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if self.hooks.trace is not None:
            self.hooks.after_layer(self.index, output)


class BeforeHead:
    def __init__(self, hooks: Hooks) -> None:
        self.hooks = hooks

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if self.hooks.trace is not None:
            self.hooks.head_input = args[0]


def linear_head(model: Any) -> nn.Linear | None:
    """The projection to the vocabulary, where logits are nothing but its output."""
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear or getattr(model.config, "final_logit_softcapping", None):
        return None
    return head


def is_attached(model: Any) -> bool:
    """Whether the hooks of some recurrence are on a model."""
    hooks = [hook for module in model.modules() for hook in module._forward_pre_hooks.values()]
    return any(isinstance(hook, BeforeBase) for hook in hooks)
