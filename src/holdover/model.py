"""RecurrentModel: a stock Hugging Face model that reads texts of any length, window by window.

* `step(window, state) -> (output, state)` is the recurrent model; `forward` lays texts out as windows,
  unrolls the step and joins what comes out.
* The stock model stays whole under `backbone`; everything that was added is under `recurrence`.
* Each window's loss is reduced inside its step: logits of two windows never live at once, unless
  they are asked for.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from .backbones import Seams, Task, linear_head, row_of, task_of
from .checks import check_finite, check_fit, check_ids, check_state
from .config import RecurrenceConfig
from .joining import join_spans, join_tokens, pool_sequences
from .loss import cross_entropy_sum, linear_cross_entropy
from .lower import batching_pays, lower_layers_done
from .manners import CompiledStep, Manners
from .mechanisms import CARRIES, Reading, Shape
from .mechanisms.carry import Trace, expand_present
from .output import RecurrentOutput
from .saving import RecurrentModelConfig, Saving, build_backbone
from .state import State
from .texts import Texts, lay_out_texts
from .unroll import Recompute, unroll
from .windows import IGNORED, Window, shift_left


@dataclass(frozen=True)
class Wanted:
    """What a step is to return beside the loss and the state."""

    task: Task
    logits: bool = False
    hidden_states: bool = False
    # Compute the loss's gradient on the way, so that no logits wait for backward. A recomputed
    # window does not need it: its logits live only inside its backward.
    fused_loss: bool = False


class RecurrentModel(Saving, Manners, PreTrainedModel):
    """A pretrained transformer with a carried state; made by `holdover.add_recurrence`."""

    config_class = RecurrentModelConfig
    main_input_name = "input_ids"
    base_model_prefix = ""
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = True
    _supports_sdpa = True
    _supports_attention_backend = True

    def __init__(self, config: RecurrentModelConfig, backbone: PreTrainedModel | None = None):
        super().__init__(config)
        self._attached_to_existing = backbone is not None
        self.backbone = build_backbone(config) if backbone is None else backbone
        self.settings = RecurrenceConfig.from_dict(config.recurrence)
        self.row = row_of(self.backbone.config.model_type)
        self.task: Task = task_of(self.backbone, self.row)
        layers = len(self.backbone.base_model.get_submodule(self.row.layers))
        shape = Shape(
            hidden=self.backbone.config.hidden_size,
            embedding=self.backbone.get_input_embeddings().embedding_dim,
            layers=layers,
        )
        carry = CARRIES[self.settings.carry](self.settings, shape)
        check_fit(self.settings, self.backbone, self.row, layers, carry.extra_positions)
        self.recurrence = carry
        insert = self.settings.insert_layer
        chosen = list(range(layers)) if insert == "all" else [insert - 1]
        seams_class = self.row.seams or Seams
        self.seams: Seams = seams_class(
            self.backbone, self.row, carry, chosen if carry.enters_at_insert_layer else []
        )
        self.seams.reads_left_to_right = self.task == "causal-lm" and not self.row.causal
        self.seams.attach()
        # What was attached to; in a tuple, so that torch does not register it a second time.
        self.given: tuple[Any, ...] = ()
        self.enabled = True
        self.recompute = self.settings.recompute
        self.horizon = 1 if self.settings.detach_state else self.settings.horizon
        self._compiled = CompiledStep()
        self._fingerprint: tuple[Any, str] | None = None
        self.post_init()

    # The recurrent model itself.

    def step(
        self, window: Window, state: State | None = None, wanted: Wanted | None = None
    ) -> tuple[dict[str, Any], State]:
        """Read one window: what the model says of it, and what it hands to the next."""
        wanted = wanted or Wanted(self.task, logits=True)
        carried = None if state is None else dict(state.tensors)
        present = None if state is None else state.present
        run = self._compiled.step or self._step
        output, tensors, now_present = run(window, carried, present, wanted)
        if self.settings.detach_state:
            tensors = {name: tensor.detach() for name, tensor in tensors.items()}
        owner = state.owner if state is not None else {}
        tail = state.tail if state is not None else None
        return output, State(tensors, now_present, tail, owner)

    def _step(
        self,
        window: Window,
        carried: dict[str, Tensor] | None,
        present: Tensor | None,
        wanted: Wanted,
    ) -> tuple[dict[str, Any], dict[str, Tensor], Tensor | None]:
        """`step` on bare tensors: the part that is compiled."""
        batch, positions = window.input_ids.shape
        tokens: int | Tensor = positions if window.mask is None else window.mask.sum(1)
        reading = self.recurrence.read(carried, present, batch)
        trace = Trace(
            batch=batch,
            length=self._pooled(tokens),
            tokens=tokens,
            partial=window.lower_mix,
            carried=carried,
            present=present,
            device=window.input_ids.device,
        )
        self.seams.open(window, reading, trace)
        try:
            self.seams.skip.stored = window.lower
            output = self._run(window, wanted)
        finally:
            self.seams.close()
        written = self.recurrence.write(trace)
        now_present = None
        if window.reads is not None:
            written, now_present = _only_reading(window.reads, written, carried, present)
        return output, written, now_present

    def _pooled(self, tokens: int | Tensor) -> int | Tensor:
        """How many positions of a window are pooled."""
        if self.settings.pool_positions == "all" or self.settings.overlap == 0:
            return tokens
        left = tokens - self.settings.overlap
        return max(left, 1) if isinstance(left, int) else left.clamp(min=1)

    def _run(self, window: Window, wanted: Wanted) -> dict[str, Any]:
        """Run the stock model on a window and reduce what it says."""
        inputs: dict[str, Any] = {"input_ids": window.input_ids}
        if window.mask is not None:
            inputs["attention_mask"] = window.mask.long()
        if window.token_type_ids is not None:
            inputs["token_type_ids"] = window.token_type_ids
        if self.row.causal:
            inputs["use_cache"] = False
        if wanted.hidden_states:
            inputs["output_hidden_states"] = True
        head = linear_head(self.backbone) if wanted.task == "causal-lm" else None
        through_base = head is not None or wanted.task in ("bare", "sequence-classification")
        stock = (self.backbone.base_model if through_base else self.backbone)(**inputs)
        output: dict[str, Any] = {}
        if wanted.hidden_states:
            output["hidden_states"] = self.seams.hidden_states(stock)
        if wanted.task == "bare":
            output["last_hidden_state"] = stock.last_hidden_state
        elif wanted.task == "sequence-classification":
            output["vector"] = self._sequence_vector(window)
        elif wanted.task == "question-answering":
            output["span_logits"] = torch.stack([stock.start_logits, stock.end_logits], -1)
        elif head is not None:
            hidden = stock.last_hidden_state
            if wanted.fused_loss and window.targets is not None:
                output["loss"] = linear_cross_entropy(
                    hidden, head.weight, head.bias, window.targets
                )
            if wanted.logits or (window.targets is not None and not wanted.fused_loss):
                output["logits"] = head(hidden)
        else:
            output["logits"] = stock.logits
        if window.targets is not None and "loss" not in output:
            output["loss"] = cross_entropy_sum(output["logits"], window.targets)
        if not wanted.logits:
            output.pop("logits", None)
        return output

    def _sequence_vector(self, window: Window) -> Tensor:
        """[B, k] last layer's output at the position that stands for the sequence."""
        hidden = self.seams.last_layer
        assert hidden is not None
        offset = self.recurrence.extra_positions // 2
        kind = getattr(self.backbone.config, "classifier_pooling", None)
        length = window.input_ids.shape[1]
        hidden = hidden[:, offset : offset + length]
        if kind == "mean":
            if window.mask is None:
                return hidden.mean(1)
            weight = window.mask.to(hidden.dtype)[..., None]
            return (hidden * weight).sum(1) / weight.sum(1)
        if self.row.sequence_vector == "first":
            return hidden[:, 0]
        if window.mask is None:
            return hidden[:, -1]
        last = window.mask.sum(1) - 1
        return hidden[torch.arange(hidden.shape[0], device=hidden.device), last]

    # Texts.

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        state: State | None = None,
        *,
        token_type_ids: Tensor | None = None,
        document_starts: Tensor | None = None,
        shift_labels: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        return_logits: bool | None = None,
        output_hidden_states: bool | None = None,
        horizon: int | None = None,
        recompute: Literal["none", "window", "auto"] | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """Read texts [B, N] of any length.

        labels: as the stock head takes them (next-token heads shift them themselves); shift_labels:
        already shifted, one for each position's output. document_starts [B, N]: true where a new
        document begins; its row's state is reset there. return_logits: logits beside a loss (on for
        all but language-modelling heads).
        """
        if not self.enabled:
            return self._stock(
                input_ids,
                attention_mask=attention_mask,
                labels=labels,
                token_type_ids=token_type_ids,
                start_positions=start_positions,
                end_positions=end_positions,
                output_hidden_states=output_hidden_states,
                return_dict=return_dict,
            )
        targets = self._targets(labels, shift_labels, attention_mask, document_starts)
        texts = self._lay_out(
            input_ids, attention_mask, targets, state, token_type_ids, document_starts
        )
        mode = recompute or self.recompute
        lm = self.task in ("causal-lm", "masked-lm")
        wanted = Wanted(
            self.task,
            logits=(targets is None or not lm) if return_logits is None else return_logits,
            hidden_states=bool(output_hidden_states),
            fused_loss=mode == "none" or not torch.is_grad_enabled(),
        )
        outputs, state = self._unroll(texts, state, wanted, mode, horizon)
        result = RecurrentOutput(state=state)
        if self.task == "question-answering":
            join_spans(result, texts, outputs, start_positions, end_positions)
        elif self.task == "sequence-classification":
            self._classify(result, texts, outputs, labels)
        elif self.task == "bare":
            result.last_hidden_state = texts.join([out["last_hidden_state"] for out in outputs])
        else:
            join_tokens(result, texts, outputs, num_items_in_batch)
        if wanted.hidden_states:
            by_layer = zip(*[output["hidden_states"] for output in outputs], strict=True)
            result.hidden_states = tuple(texts.join(list(parts)) for parts in by_layer)
        if result.loss is not None and torch.is_grad_enabled():
            result.loss = self._touch_added(result.loss)
        return result if return_dict is not False else result.to_tuple()

    def encode(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        state: State | None = None,
        *,
        token_type_ids: Tensor | None = None,
        document_starts: Tensor | None = None,
    ) -> Tensor:
        """One contextual vector a token [B, N, k] for texts of any length; where windows overlap,
        the one that saw the most context."""
        texts = self._lay_out(
            input_ids, attention_mask, None, state, token_type_ids, document_starts
        )
        outputs, _ = self._unroll(texts, state, Wanted("bare"), self.recompute, None)
        return texts.join([output["last_hidden_state"] for output in outputs])

    def _targets(
        self,
        labels: Tensor | None,
        shift_labels: Tensor | None,
        attention_mask: Tensor | None,
        starts: Tensor | None,
    ) -> Tensor | None:
        """[B, N] the label of each position's own output, for heads that label tokens."""
        if self.task in ("masked-lm", "token-classification"):
            return labels
        if self.task != "causal-lm" or shift_labels is not None or labels is None:
            return shift_labels
        if attention_mask is not None:
            labels = labels.masked_fill(attention_mask == 0, IGNORED)
        return shift_left(labels, None if starts is None else starts.bool())

    def _lay_out(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        targets: Tensor | None,
        state: State | None,
        token_type_ids: Tensor | None,
        starts: Tensor | None,
    ) -> Texts:
        mask = None if attention_mask is None else attention_mask.bool()
        check_ids(input_ids, mask, self.backbone.config.vocab_size)
        if state is not None:
            check_state(state, input_ids.shape[0], input_ids.device, self.owner())
        return lay_out_texts(
            input_ids,
            mask,
            targets,
            state,
            window=self.settings.window,
            overlap=self.settings.overlap,
            centred=not (self.row.causal or self.task == "causal-lm"),
            padding=self.backbone.config.pad_token_id or 0,
            token_type_ids=token_type_ids,
            starts=None if starts is None else starts.bool(),
        )

    def _unroll(
        self, texts: Texts, state: State | None, wanted: Wanted, mode: Any, horizon: int | None
    ) -> tuple[list[dict[str, Any]], State]:
        rule = Recompute(
            mode,
            self.settings.memory_budget,
            random=self.training,
            parameters=tuple(self.parameters()) if mode == "auto" else (),
        )
        step = partial(self.step, wanted=wanted)
        outputs = []
        with self._prepared(texts.windows, mode) as windows:
            for output, reached in unroll(
                step, windows, state, horizon=horizon or self.horizon, recompute=rule
            ):
                outputs.append(output)
                state = reached
        assert state is not None
        return outputs, replace(state, tail=texts.last(self.settings.overlap), owner=self.owner())

    @contextmanager
    def _prepared(self, windows: list[Window], mode: str) -> Iterator[list[Window]]:
        """The windows, with the layers below the insert layer already run where that is faster."""
        insert = self.settings.insert_layer
        below = 0 if insert == "all" or not self.recurrence.enters_at_insert_layer else insert - 1
        if self.seams.reads_left_to_right:
            # A second stream of queries passes through those layers too.
            below = 0
        keeps = mode == "none" or not torch.is_grad_enabled()
        if below == 0 or not keeps or not batching_pays(windows, self.settings.lower_layers):
            yield windows
            return
        run = self._compiled.lower or self._run_lower
        with lower_layers_done(self.seams, windows, below, run) as done:
            yield done

    def _run_lower(self, window: Window) -> tuple[Tensor, Tensor | None]:
        """[B, T, k] input of the insert layer, and what the layers below add to the summary."""
        batch, positions = window.input_ids.shape
        trace = Trace(batch=batch, length=self._pooled(positions), tokens=positions)
        self.seams.open(window, Reading(), trace)
        try:
            self._run(window, Wanted("bare"))
            reached = self.seams.skip.reached
        finally:
            self.seams.close()
        assert reached is not None
        return reached, trace.partial

    def _classify(
        self,
        result: RecurrentOutput,
        texts: Texts,
        outputs: list[dict[str, Any]],
        labels: Tensor | None,
    ) -> None:
        """Sequence heads: the stock norm, pooler and classifier on the windows' pooled vectors."""
        vector = pool_sequences(texts, outputs)
        # One token stands for the text; the layers are skipped, so which one does not matter as
        # long as it is no padding.
        token = 1 if self.backbone.config.pad_token_id == 0 else 0
        ids = torch.full((vector.shape[0], 1), token, device=vector.device)
        skip = self.seams.skip
        with skip.skipped(0, len(self.seams.layers)):
            skip.stored = vector[:, None]
            stock = self.backbone(input_ids=ids, labels=labels)
        result.logits, result.loss = stock.logits, stock.loss
        if result.loss is not None:
            check_finite([result.loss])


def _only_reading(
    reads: Tensor,
    written: dict[str, Tensor],
    carried: dict[str, Tensor] | None,
    present: Tensor | None,
) -> tuple[dict[str, Tensor], Tensor]:
    """Rows that read nothing in this window keep the state they had."""
    kept = {}
    for name, tensor in written.items():
        before = torch.zeros_like(tensor) if carried is None else carried[name]
        kept[name] = torch.where(expand_present(reads, tensor), tensor, before)
    if carried is None:
        return kept, reads
    return kept, torch.ones_like(reads) if present is None else reads | present
