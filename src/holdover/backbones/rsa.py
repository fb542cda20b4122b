"""RSA in a stock model: its attention modules find our function in transformers' attention interface.

* The function calls the one that the model's configuration names (sdpa, eager), and mixes a recurrence
  over the same values into what it returns (ops/rsa.py). Scores, masks, soft caps, dropout and
  attention weights are the stock function's.
* A module looks its function up under the name that its configuration has. It gets a view of that
  configuration with another name, for as long as a window is open: masks, which the model makes by the
  name in its own configuration, stay as they were, and a closed model is the stock model.
"""

import sys
from typing import Any

from torch import Tensor, arange, nn
from torch.nn.functional import pad
from transformers import AttentionInterface

from ..config import RecurrenceConfig
from ..ops.rem import RecurrenceEncoding
from ..ops.rsa import RSA

NAME = "holdover_rsa"


def takes_rsa(attention: nn.Module) -> bool:
    """Whether an attention module asks the attention interface for its function."""
    modelling = sys.modules[type(attention).__module__]
    return hasattr(modelling, "ALL_ATTENTION_FUNCTIONS") and hasattr(attention, "config")


def add_rsa(hooks: Any, settings: RecurrenceConfig) -> None:
    """A recurrence for each of the layers that are to have one, as weights of the carry."""
    if not settings.rsa:
        return
    chosen = settings.rsa_layers
    numbers = range(1, len(hooks.layers) + 1) if chosen == "all" else chosen
    modules = nn.ModuleDict()
    for number in numbers:
        attention = hooks.layers[number - 1].get_submodule(hooks.spec.attention)
        encoding = RecurrenceEncoding(
            settings.rem_counts,
            settings.rem_dilations,
            gate=settings.rem_gate,
            # An encoder's configuration can make a decoder of it.
            masked=hooks.spec.causal or attention.is_causal,
            truncate=settings.rem_truncate,
        )
        modules[str(number)] = RSA(encoding)
        hooks.rsa.append(RSAHook(hooks, number - 1, attention, modules[str(number)]))
    hooks.carry.add_module("rsa", modules)


class RSAHook:
    """One attention module and the recurrence that is mixed into it."""

    def __init__(self, hooks: Any, index: int, attention: Any, rsa: nn.Module) -> None:
        self.hooks = hooks
        self.index = index
        self.attention = attention
        self.rsa = rsa

    def attach(self) -> "RSAHook":
        """Give the module its view; `remove` gives it its configuration back."""
        self.attention.config = ConfigView(self, self.attention.config)
        return self

    def remove(self) -> None:
        self.attention.config = self.attention.config.stock

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **others: Any
    ) -> tuple[Tensor, Tensor | None]:
        """[B, T, H, D] and the softmax weights, as attention functions return them."""
        stock = self._stock_function()
        output, weights = stock(self.attention, query, key, value, mask, **others)
        attended = output.transpose(1, 2)
        mixed = self.rsa(query, key, value, lambda *_: attended, self._present(value))
        return mixed.transpose(1, 2), weights

    def _stock_function(self) -> Any:
        # Asked anew each time: the implementation of a live model can be changed.
        name = self.hooks.model.config._attn_implementation
        if name == "eager" and getattr(self.attention, "reorder_and_upcast_attn", False):
            raise ValueError(
                "GPT-2's reorder_and_upcast_attn goes around transformers' attention interface, where "
                "rsa=True is mixed in: call set_attn_implementation('sdpa') on the base model, or set "
                "it to False."
            )
        modelling: Any = sys.modules[type(self.attention).__module__]
        return modelling.ALL_ATTENTION_FUNCTIONS.get_interface(
            name, modelling.eager_attention_forward
        )

    def _present(self, value: Tensor) -> Tensor | None:
        """[B or 1, S] keys that are positions of the window and hold something; None: all of them.

        Rows that a carry inserts at this layer are no positions: no lag leads to them.
        """
        hooks = self.hooks
        given, rows = hooks.call.given_mask, hooks.call.inputs.rows
        present = None if given is None else given.bool()
        if rows is None or self.index not in hooks.insert_layers:
            return present
        count = rows.shape[1]
        if present is None:
            return arange(value.shape[2], device=value.device)[None] >= count
        return pad(present, (count, 0), value=False)


class ConfigView:
    """A model's configuration, with the name of our attention function while a window is open."""

    def __init__(self, hook: RSAHook, stock: Any) -> None:
        self.hook = hook
        self.stock = stock

    @property
    def _attn_implementation(self) -> str:
        return NAME if self.hook.hooks.call is not None else self.stock._attn_implementation

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            # What copying asks for, of an object that has no stock yet.
            raise AttributeError(name)
        return getattr(self.stock, name)


def rsa_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """The attention function; whose recurrence it is, the module's view of its configuration knows."""
    return module.config.hook.attend(query, key, value, attention_mask, **others)


AttentionInterface.register(NAME, rsa_attention)
