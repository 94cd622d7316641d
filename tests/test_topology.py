import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_stack import split, topology
from grpo_stack.facts import Gpu, GpuLink, GpuProcess

EMPTY = {field.name: None for field in dataclasses.fields(Gpu)}


def gpu(index, links=None, **found):
    links = tuple(GpuLink(peer, path) for peer, path in (links or {}).items())
    return Gpu(**{**EMPTY, "index": index, "links": links, **found})


def islands(*groups, **used):
    """GPUs with NVLink inside each group and the way across sockets between them; `used`: MiB by `gpuN`."""
    every = sorted(index for group in groups for index in group)
    home = {index: group for group in groups for index in group}

    def path(one, other):
        return "nvlink" if other in home[one] else "system"

    return [
        gpu(
            one,
            {other: path(one, other) for other in every if other != one},
            memory_used_mib=used.get(f"gpu{one}", 300),
        )
        for one in every
    ]


def chosen(text, gpus):
    return topology.text(topology.choose(split.parse(text), gpus).split)


def test_each_side_stays_within_an_island():
    assert chosen("2:2", islands((0, 2), (1, 3))) == "0,2:1,3"
    assert chosen("4:2", islands((0, 1), (2, 3, 4, 5))) == "2,3,4,5:0,1"


def test_where_all_are_linked_alike_the_first_ones_serve():
    assert chosen("4:4", islands(range(8))) == "0,1,2,3:4,5,6,7"
    assert chosen("1:2", [gpu(index) for index in range(8)]) == "0:1,2"


def test_a_used_gpu_is_passed_over_and_named():
    choice = topology.choose(split.parse("2:1"), islands(range(4), gpu1=41000))

    assert str(choice) == "GPU 0,2 serve, 3 train; passed over: GPU 1 (41000 MiB in use, no process listed)"


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ({"memory_used_mib": 600}, ""),
        ({"memory_used_mib": 5, "processes": (GpuProcess(7, None, None),)}, "5 MiB in use, process 7"),
        ({"memory_used_mib": 9000, "processes": (GpuProcess(7, "python", 8000),)}, "9000 MiB in use, python"),
        ({"memory_used_mib": 9000, "processes": ()}, "9000 MiB in use, no process listed"),
        ({"mig_enabled": True}, "cut into MIG slices"),
        ({"ecc_errors": 2}, "2 uncorrected memory errors"),
        ({}, ""),
    ],
)
def test_what_speaks_against_a_gpu(found, reason):
    assert topology.unfit(gpu(0, **found)) == reason


def test_ids_that_were_named_and_hosts_that_are_too_small_keep_the_split():
    named, counted = split.parse("1-1:0"), split.parse("4:4")

    assert topology.choose(named, islands(range(4))).split == named
    assert topology.choose(counted, islands(range(4))).split == counted


def test_many_gpus_are_chosen_among_in_time_and_still_by_island():
    found = topology.choose(split.parse("5:6"), islands(range(0, 16, 2), range(1, 16, 2))).split

    assert {len({int(index) % 2 for index in side}) for side in (found.server, found.trainer)} == {1}


def test_the_longest_way_of_a_side_is_what_counts():
    gpus = islands((0, 1), (2, 3))

    assert topology.worst(gpus[:2]) == "nvlink"
    assert topology.worst(gpus[:3]) == "system"
    assert topology.worst(gpus[:1]) is None
    assert topology.worst([gpu(0), gpu(1)]) is None


paths = st.sampled_from([*topology.PATHS, None])


@st.composite
def hosts(draw):
    count = draw(st.integers(2, 8))
    ways = {pair: draw(paths) for pair in ((a, b) for a in range(count) for b in range(a + 1, count))}
    used = [draw(st.sampled_from([300, 50000])) for _ in range(count)]
    server = draw(st.integers(1, count - 1))
    trainer = draw(st.integers(1, count - server))
    gpus = [
        gpu(
            one,
            {other: ways[min(one, other), max(one, other)] for other in range(count) if other != one},
            memory_used_mib=used[one],
        )
        for one in range(count)
    ]
    return gpus, server, trainer


@settings(max_examples=200, deadline=None)
@given(hosts())
def test_sides_are_disjoint_of_the_right_size_and_free_where_that_is_possible(host):
    gpus, server, trainer = host
    wanted = split.by_count(server, trainer)

    found = topology.choose(wanted, gpus).split

    assert (len(found.server), len(found.trainer)) == (server, trainer)
    assert len(set(found.gpus)) == server + trainer
    used = {str(gpu.index) for gpu in gpus if topology.use(gpu)}
    assert len(used & set(found.gpus)) == max(0, server + trainer - (len(gpus) - len(used)))
    assert topology.choose(wanted, gpus).split == found
    assert split.parse(topology.text(found)) == found


@settings(max_examples=100, deadline=None)
@given(hosts(), st.randoms(use_true_random=False))
def test_no_other_free_choice_is_linked_better(host, random):
    gpus, server, trainer = host
    free = [gpu for gpu in gpus if not topology.use(gpu)]
    if len(free) < server + trainer:
        return
    other = random.sample(free, server + trainer)

    def cost(sides):
        ways = [topology._rank(a, b) for side in sides for a in side for b in side if a.index < b.index]
        return max(ways, default=0), sum(ways)

    found = topology.choose(split.by_count(server, trainer), gpus).split
    sides = [[gpus[int(index)] for index in side] for side in (found.server, found.trainer)]

    assert cost(sides) <= cost([other[:server], other[server:]])
