"""Hooks: the places of a stock model where a window's state enters and its layers are observed.

* Nothing of the model is replaced: while no window is open the hooks do nothing, and removing them
  leaves the very object that came in.
* Nothing of a window is kept here. A forward pass has a `WindowCall`, which the hooks look up.
"""

from typing import Any

import torch
from torch import Tensor, nn

from ..carries.base import Carry, CarryInputs, StepTrace
from ..windows import Window
from .attention import argument_names, by_name, with_changes
from .rsa import RSAHook
from .skip_layers import SkippableForward
from .window_call import CURRENT_CALL, WindowCall


class Hooks:
    """All hooks of one attached model."""

    # Set for a bidirectional model whose head predicts the next token.
    reads_left_to_right = False

    def __init__(self, model: Any, spec: Any, carry: Carry) -> None:
        self.model = model
        self.spec = spec
        self.carry = carry
        self.base = model.base_model.get_submodule(spec.base)
        self.layers: list[nn.Module] = list(self.base.get_submodule(spec.layers))
        self.insert_layers = list(carry.insert_layers())
        self.rsa: list[RSAHook] = []
        self.embedding = self.base.get_input_embeddings()
        self._traced_call: WindowCall | None = None
        self._handles: list[Any] = []

    @property
    def call(self) -> WindowCall | None:
        """The window that this thread reads with this model now."""
        if torch.compiler.is_dynamo_compiling():
            return self._traced_call
        call = CURRENT_CALL.get()
        return call if call is not None and call.hooks is self else None

    @property
    def fused_causal(self) -> bool:
        # Asked anew each time: the implementation of a live model can be changed.
        return self.spec.causal and self.model.config._attn_implementation == "sdpa"

    def attach(self) -> None:
        for index in self.insert_layers:
            layer = self.layers[index]
            hook = self.spec.attention_hook(
                self, layer, layer.get_submodule(self.spec.attention), self._norm(layer)
            )
            self._handles += hook.attach()
        self._handles += [hook.attach() for hook in self.rsa]
        for index, layer in enumerate(self.layers):
            self._handles += [
                SkippableForward(self, layer, index),
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
        spec, config = self.spec, self.model.config
        if spec.norm is None or (spec.norm_if and not getattr(config, spec.norm_if)):
            return None
        return layer.get_submodule(spec.norm)

    def prepared(self, inputs: CarryInputs, batch: int) -> CarryInputs:
        """With everything that is computed once for a window, even if it is read in pieces."""
        return inputs

    def open(self, call: WindowCall) -> Any:
        """Let the hooks work for this call; returns what `close` needs."""
        call.hooks = self
        if self.carry.needs_layer_inputs:
            call.trace.layer_inputs = []
        if torch.compiler.is_dynamo_compiling():
            self._traced_call = call
            return None
        return CURRENT_CALL.set(call)

    def close(self, token: Any) -> None:
        if torch.compiler.is_dynamo_compiling():
            self._traced_call = None
        else:
            CURRENT_CALL.reset(token)

    # What the hooks do; architectures with another layout override these.

    def before_base(self, call: WindowCall, named: dict[str, Any]) -> dict[str, Any]:
        reading = call.inputs
        if reading.prefix is None or reading.suffix is None:
            return named
        tokens = self.embedding(named.pop("input_ids"))
        named["inputs_embeds"] = self._arrange(
            call,
            torch.cat(
                [reading.prefix.to(tokens.dtype), tokens, reading.suffix.to(tokens.dtype)], 1
            ),
        )
        named["attention_mask"] = self._mask_with_memory(call, tokens)
        if named.get("token_type_ids") is not None:
            slots = reading.prefix.shape[1]
            padded = nn.functional.pad(named["token_type_ids"], (slots, slots))
            named["token_type_ids"] = self._arrange(call, padded)
        return named

    def before_layer(self, call: WindowCall, index: int, named: dict[str, Any]) -> dict[str, Any]:
        """The layer's arguments that change."""
        if self.carry.needs_layer_inputs:
            assert call.trace.layer_inputs is not None
            call.trace.layer_inputs.append(self.layer_input(named))
        masked = named.get("attention_mask") is not None
        if masked and self.fused_causal and self._unmasked(call, index):
            # Under compilation transformers builds the causal mask it would otherwise leave out,
            # and the fused causal kernel takes none.
            return {"attention_mask": None}
        return {}

    def after_layer(self, call: WindowCall, index: int, output: Any) -> None:
        if index == len(self.layers) - 1:
            call.last_layer = self.layer_output(output)
        elif self.carry.wants(index) and not call.skips(index):
            self._observe(call, index, self.layer_output(output))

    def after_base(self, call: WindowCall, output: Any) -> Any:
        call.finished = True
        last = self.final_hidden(call, output)
        index = len(self.layers) - 1
        if self.carry.wants(index) and not call.skips(index):
            self._observe(call, index, last)
        if call.inputs.prefix is not None and call.inputs.suffix is not None:
            call.trace.suffix = self._suffix_of(call, last)
            return self._without_memory(output, call.inputs.prefix.shape[1])
        return output

    def _observe(self, call: WindowCall, index: int, hidden: Tensor) -> None:
        if call.observe is not None:
            call.observe(index, hidden)
        else:
            self.carry.observe(call.trace, index, hidden)

    def run_head(self, vector: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Logits and loss of a sequence head for vectors [B, k]: its own norm, pooler and classifier
        run, the layers do not."""
        # One token stands for the text; any token that is no padding will do.
        token_id = 1 if self.model.config.pad_token_id == 0 else 0
        ids = torch.full((vector.shape[0], 1), token_id, device=vector.device)
        trace = StepTrace(batch=len(ids), tokens=1, window=1, overlap=0, settings=None)
        call = WindowCall(Window(ids), CarryInputs(), trace)
        call.skipped = (0, len(self.layers))
        call.skip_output = vector[:, None]
        token = self.open(call)
        try:
            stock = self.model(input_ids=ids, labels=labels)
        finally:
            self.close(token)
        call.check_skipped()
        return stock.logits, stock.loss

    def layer_input(self, named: dict[str, Any]) -> Tensor:
        """[B, T, k]"""
        return named["hidden_states"]

    def layer_output(self, output: Any) -> Tensor:
        """[B, T, k]"""
        return output if isinstance(output, Tensor) else output[0]

    def pass_through(self, named: dict[str, Any], stored: Tensor | None) -> Any:
        """What a skipped layer returns: something stored, or its input."""
        hidden = named["hidden_states"] if stored is None else stored
        return (hidden,) if self.spec.layer_returns_tuple else hidden

    def final_hidden(self, call: WindowCall, output: Any) -> Tensor:
        """[B, T, k] output of the last layer: after the final norm, as transformers lists it,
        except where the model narrows it afterwards (OPT-350m)."""
        last = output.last_hidden_state
        assert call.last_layer is not None
        return last if last.shape[-1] == call.last_layer.shape[-1] else call.last_layer

    def hidden_states(self, output: Any) -> tuple[Tensor, ...]:
        """(L + 1) x [B, T, k], as transformers lists them."""
        return output.hidden_states

    # Memory tokens: [read, tokens, write, padding] in every row.

    def _arrange(self, call: WindowCall, values: Tensor) -> Tensor:
        """values [B, m + T + m, ...] with padding moved after the write positions."""
        order = self._order(call, values.shape[1])
        if order is None:
            return values
        index = order.reshape(*order.shape, *[1] * (values.ndim - 2)).expand(
            -1, -1, *values.shape[2:]
        )
        return values.gather(1, index)

    def _order(self, call: WindowCall, positions: int) -> Tensor | None:
        """[B, m + T + m] for each place the position of the unarranged row it takes."""
        if call.window.mask is None:
            return None
        assert call.inputs.prefix is not None
        slots = call.inputs.prefix.shape[1]
        end = call.window.mask.sum(1, keepdim=True) + slots
        place = torch.arange(positions, device=end.device).expand(end.shape[0], -1)
        written = place - end + positions - slots
        return torch.where(
            place < end, place, torch.where(place < end + slots, written, place - slots)
        )

    def _mask_with_memory(self, call: WindowCall, tokens: Tensor) -> Tensor | None:
        reading, window = call.inputs, call.window
        assert reading.prefix is not None
        if reading.visible is None and (window.mask is None or self.spec.causal):
            return None
        batch, length = tokens.shape[:2]
        seen = torch.ones(
            batch, length + 2 * reading.prefix.shape[1], dtype=torch.long, device=tokens.device
        )
        slots = reading.prefix.shape[1]
        if window.mask is not None:
            seen[:, slots : slots + length] = window.mask.long()
        seen = self._arrange(call, seen)
        if reading.visible is not None:
            seen[:, :slots] = reading.visible[:, None].long()
        return seen

    def _suffix_of(self, call: WindowCall, hidden: Tensor) -> Tensor:
        """[B, m, k] outputs of the write positions."""
        assert call.inputs.prefix is not None
        slots = call.inputs.prefix.shape[1]
        if call.window.mask is None:
            # A copy: a view would keep the whole window's output alive as part of the state.
            return hidden[:, -slots:].clone()
        first = call.window.mask.sum(1, keepdim=True) + slots
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

    def _unmasked(self, call: WindowCall, index: int) -> bool:
        """Whether plain causal attention without a mask is right for this layer and window."""
        if call.past or call.inputs.keys_values is not None:
            return False
        if call.inputs.prefix is not None and call.inputs.visible is not None:
            return False
        attention = self.layers[index].get_submodule(self.spec.attention)
        stock = getattr(self.model.config, "sliding_window", None)
        limit = getattr(attention, "sliding_window", stock)
        length = call.window.input_ids.shape[1] + self.carry.extra_positions
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
        call = self.hooks.call
        if call is None:
            return None
        named = self.hooks.before_base(call, by_name(self.names, args, kwargs))
        call.given_mask = named.get("attention_mask")
        return (), named


class AfterBase(_Hook):
    def __init__(self, hooks: Hooks) -> None:
        super().__init__(hooks, hooks.base)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any):
        call = self.hooks.call
        return None if call is None else self.hooks.after_base(call, output)


class BeforeLayer(_Hook):
    def __init__(self, hooks: Hooks, index: int) -> None:
        super().__init__(hooks, hooks.layers[index])
        self.index = index

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]):
        call = self.hooks.call
        if call is None:
            return None
        changes = self.hooks.before_layer(call, self.index, by_name(self.names, args, kwargs))
        return with_changes(self.names, args, kwargs, changes) if changes else None


class AfterLayer(_Hook):
    def __init__(self, hooks: Hooks, index: int) -> None:
        super().__init__(hooks, hooks.layers[index])
        self.index = index

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        call = self.hooks.call
        if call is not None:
            self.hooks.after_layer(call, self.index, output)


class BeforeHead:
    def __init__(self, hooks: Hooks) -> None:
        self.hooks = hooks

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        call = self.hooks.call
        if call is not None:
            call.head_input = args[0]


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
