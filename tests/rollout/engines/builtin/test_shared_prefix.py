"""The KV of a common prefix is read once for several sequences, and nothing else changes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from burnish.models.model_input import ModelInput
from burnish.rollout.engine import Request, Sampling
from burnish.rollout.engines.builtin import shared_prefix
from burnish.rollout.engines.builtin.shared_prefix import find_clusters, max_clusters
from burnish.seeding import derive_seed
from burnish.sizing import capture_sizes

from .test_graph_decode import LOOP, PATIENCE, assert_same

TEN = Sampling(10, ignore_eos=True)


@pytest.fixture
def make_loop(make_engine):
    """make_loop(folder, shared_prefix, **options): an engine with the device loop and blocks of 16 tokens."""

    def make(folder, shared_prefix=True, triton=False, **options):
        extra = {"block_size": 16, "sync_interval": 4, "triton": triton, "shared_prefix": shared_prefix}
        return make_engine(folder, **{**LOOP, "extra": extra, **options})

    return make


@pytest.fixture(autouse=True)
def short_prefixes(monkeypatch):
    monkeypatch.setattr(shared_prefix, "MIN_TOKENS", 16)


def tables(*rows):
    """Block tables as the device's batch has them."""
    width = max(map(len, rows)) + 2
    return np.array([[*row, *[0] * (width - len(row))] for row in rows]), np.array([len(row) for row in rows])


def clusters_of(rows, members=16, capacity=100):
    """[(rows, prefix in blocks)], in the order of their saving."""
    found = find_clusters(*tables(*rows), block_size=16, members=members, capacity=capacity)
    parts = np.split(found.rows, np.cumsum(found.sizes)[:-1]) if len(found.sizes) else []
    return [(sorted(part.tolist()), tokens // 16) for part, tokens in zip(parts, found.prefix.tolist(), strict=True)]


class TestClusters:
    def test_samples_of_a_prompt(self):
        rows = [(5, 6, 1), (7, 8, 9, 2), (5, 6, 3, 4), (7, 8, 9, 10), (5, 6, 11)]
        assert clusters_of(rows) == [([0, 2, 4], 2), ([1, 3], 3)]

    def test_nothing_is_shared(self):
        assert clusters_of([(1, 2), (3, 4), (5,)]) == clusters_of([(0,)]) == []

    def test_block_zero_and_unused_places(self):
        """Tables are filled up with zeros, and block 0 may be a prompt's."""
        assert clusters_of([(0, 1), (0, 2, 3), (4,), (5,)]) == [([0, 1], 1)]

    def test_large_groups_are_split_evenly(self):
        found = clusters_of([(7, 8, 20 + number) for number in range(17)], members=16)
        assert [len(rows) for rows, _ in found] == [9, 8] and {prefix for _, prefix in found} == {2}
        assert sorted(row for rows, _ in found for row in rows) == list(range(17))

    def test_a_shorter_prefix_of_all_does_not_break_up_groups(self):
        """As a common system prompt with prefix caching."""
        rows = [(1, 10 + number // 2, 20 + number) for number in range(6)]
        assert clusters_of(rows) == [([0, 1], 2), ([2, 3], 2), ([4, 5], 2)]

    def test_what_is_left_over_shares_what_it_can(self):
        """Rows 0 and 1 have a long history in common, the others only its first block."""
        rows = [(1, 2, 3, 10), (1, 2, 3, 11), (1, 12), (1, 2, 13), (1, 14)]
        assert clusters_of(rows) == [([0, 1], 3), ([2, 4], 1)]
        assert clusters_of([(1, 2, 3, 10), (1, 2, 3, 11), (1, 2, 12), (1, 13), (1, 4, 14), (1, 4, 15)]) == [
            ([0, 1], 3),
            ([4, 5], 2),
            ([2, 3], 1),
        ]

    def test_only_the_best_fit(self):
        rows = [(1, 10), (1, 11), (2, 3, 12), (2, 3, 13), (4, 14), (4, 15), (4, 16), (4, 17)]
        assert clusters_of(rows, capacity=2) == [([4, 5, 6, 7], 1), ([2, 3], 2)]

    def test_short_prefixes_are_left_alone(self, monkeypatch):
        monkeypatch.setattr(shared_prefix, "MIN_TOKENS", 32)
        assert clusters_of([(1, 10), (1, 11), (2, 3, 12), (2, 3, 13)]) == [([2, 3], 2)]

    def test_long_prefixes(self):
        """Longer than what is compared first."""
        common = list(range(1, 60))
        assert clusters_of([[*common, 70], [*common, 71], [72], [73, 74]]) == [([0, 1], 59)]
        assert clusters_of([common, common]) == [([0, 1], 59)]

    def test_any_tables(self):
        """Random histories that branch: clusters are disjoint, and their rows do have the prefix."""
        g = np.random.default_rng(0)
        for _ in range(30):
            blocks, rows = iter(range(10_000)), [[]]
            for _ in range(int(g.integers(1, 40))):
                parent = rows[int(g.integers(len(rows)))]
                rows.append(
                    [*parent[: int(g.integers(len(parent) + 1))], *[next(blocks) for _ in range(g.integers(6))]]
                )
            rows = [[*row, next(blocks)] for row in rows]
            members = int(g.integers(2, 9))
            found = clusters_of(rows, members=members)
            taken = [row for cluster, _ in found for row in cluster]
            assert len(taken) == len(set(taken))
            for cluster, prefix in found:
                assert 2 <= len(cluster) <= members and prefix > 0
                assert len({tuple(rows[row][:prefix]) for row in cluster}) == 1
                assert len({tuple(rows[row][: prefix + 1]) for row in cluster}) > 1

    def test_capacity(self):
        """Enough for groups of four, and different for every size that has a graph."""
        found = [max_clusters(rows) for rows in capture_sizes(4096)]
        assert found[0] == 2 and all(one < other for one, other in itertools.pairwise(found))
        assert all(rows / 4 <= max_clusters(rows) <= rows / 4 + 13 for rows in range(1, 4097))


class TestTokens:
    """The same as without sharing; here the device is the CPU."""

    def both(self, make_loop, folder, prompts, sampling, ask, **options):
        shared = make_loop(folder, **options)
        assert_same(
            ask(shared, prompts, sampling), ask(make_loop(folder, shared_prefix=False, **options), prompts, sampling)
        )
        return shared.stats()

    def test_families(self, family_folder, make_loop, prompt, ask):
        """Windows, soft caps; a group, a pair and one alone."""
        prompts = [prompt(70)] * 5 + [prompt(40)] * 2 + [prompt(33)]
        for sampling in (Sampling(20, ignore_eos=True), Sampling(20, temperature=0)):
            assert self.both(make_loop, family_folder, prompts, sampling, ask)["kv_tokens_saved"] > 0

    def test_in_triton(self, tiny_folder, make_loop, prompt, ask):
        prompts, sampling = [prompt(35)] * 3 + [prompt(18)], Sampling(4, ignore_eos=True)
        limits = {"max_num_seqs": 4, "max_model_len": 64}
        assert self.both(make_loop, tiny_folder, prompts, sampling, ask, triton=True, **limits)["kv_tokens_saved"] > 0

    def test_sequences_that_come_and_go(self, tiny_folder, make_loop, prompt):
        """More than there are slots, in groups, with lengths of their own; some need slow sampling and change slots."""
        lengths = (3, 30, 11, 8, 25, 4, 17, 9)
        requests = [
            Request(
                ModelInput(prompt(34 + 16 * (number % 3))),
                Sampling(length, ignore_eos=True, top_k=5 if number % 4 == 1 else -1),
                derive_seed(2, number),
            )
            for number, length in enumerate(lengths * 2)
        ]
        ours, theirs = (make_loop(tiny_folder, shared_prefix=on, max_num_seqs=6) for on in (True, False))
        found, expected = ([f.result(PATIENCE) for f in engine.generate(requests)] for engine in (ours, theirs))
        assert_same(found, expected)
        assert ours.stats()["kv_tokens_saved"] > 0

    def test_preemption(self, tiny_folder, make_loop, prompt, ask):
        prompts, sampling = [prompt(50)] * 5 + [prompt(40)] * 3, Sampling(40, ignore_eos=True)
        limits = {"memory_share": 0.0, "max_model_len": 100}
        stats = self.both(make_loop, tiny_folder, prompts, sampling, ask, **limits)
        assert stats["preemptions"] > 0 and stats["kv_tokens_saved"] > 0

    def test_prefix_caching(self, tiny_folder, make_loop, prompt, ask):
        """Different prompts with a common beginning."""
        prompts = [prompt(40) + prompt(9, salt) for salt in range(4)]
        assert (
            self.both(make_loop, tiny_folder, prompts, TEN, ask, prefix_caching=True)["kv_tokens_saved"] == 9 * 3 * 32
        )

    def test_conversations(self, tiny_folder, make_loop, prompt):
        """Sessions that begin with the same prompt: in their second turn they still share its blocks."""
        engines = [make_loop(tiny_folder, shared_prefix=on) for on in (True, False)]
        turns = []
        for engine in engines:
            first = [Request(ModelInput(prompt(40)), TEN, seed, session=str(seed)) for seed in range(3)]
            answers = [future.result(PATIENCE) for future in engine.generate(first)]
            engine.stats()
            second = [
                Request(ModelInput((*prompt(40), *answer.ids, *prompt(5, seed))), TEN, seed, session=str(seed))
                for seed, answer in enumerate(answers)
            ]
            turns.append([*answers, *(future.result(PATIENCE) for future in engine.generate(second))])
        assert_same(*turns)
        assert engines[0].stats()["kv_tokens_saved"] == 9 * 2 * 32


class TestReads:
    def test_a_prompt_is_read_once_per_group(self, tiny_folder, make_loop, prompt, ask):
        """9 steps over 16 samples of a prompt with 4 full blocks: the first token comes from the prefill."""
        steps, group, full, rest = 9, 16, 64, 6
        own = sum(rest + step for step in range(steps))  # cached tokens of a sample that are not in the prompt's blocks
        reads = []
        for on in (True, False):
            engine = make_loop(tiny_folder, shared_prefix=on)
            ask(engine, [prompt(full + rest)] * group, TEN)
            reads.append(engine.stats()["kv_tokens_read"])
        assert reads == [steps * full + group * own, group * (steps * full + own)]

    def test_sequences_that_end_leave_the_prefix_to_the_others(self, tiny_folder, make_loop, prompt):
        """In the same window: it is read as long as one of them is active."""
        lengths = (2, 5, 12)
        requests = [
            Request(ModelInput(prompt(32)), Sampling(length, ignore_eos=True), seed)
            for seed, length in enumerate(lengths)
        ]
        engine = make_loop(tiny_folder)
        assert [len(f.result(PATIENCE).ids) for f in engine.generate(requests)] == list(lengths)
        own = sum(step for length in lengths for step in range(length - 1))
        assert engine.stats()["kv_tokens_read"] == 11 * 32 + own
        assert engine.stats().get("kv_tokens_read", 0) == 0

    def test_tensors_keep_their_addresses(self, tiny_folder, make_loop, prompt, ask):
        """Captured graphs read them."""
        engine = make_loop(tiny_folder)
        ask(engine, [prompt(40)] * 3, TEN)
        before = [part.data_ptr() for part in engine.decoder.allocated.prefixes.of_slots(3)]
        ask(engine, [prompt(60)] * 9, TEN)
        assert [part.data_ptr() for part in engine.decoder.allocated.prefixes.of_slots(3)] == before

    def test_off_by_default(self, tiny_folder, make_engine):
        engine = make_engine(tiny_folder, **LOOP)
        engine.decoder.open_cache()
        assert engine.decoder.allocated.prefixes is None


def test_a_batch_without_clusters(tiny_folder, make_loop):
    engine = make_loop(tiny_folder, max_num_seqs=2)
    engine.decoder.open_cache()
    prefixes = engine.decoder.allocated.prefixes
    clusters, prefix, shared = prefixes.of_slots(1)
    assert clusters.shape == (2, prefixes.members) and prefix.shape == (2,) and shared.shape == (1,)
    assert torch.equal(clusters, torch.full_like(clusters, -1)) and not prefix.any() and not shared.any()
