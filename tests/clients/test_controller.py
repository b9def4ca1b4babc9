"""`forkd.Controller` as it is published."""

import time

import pytest
from forkd import ControllerError

SNAPSHOT_FIELDS = {"tag", "dir", "created_at_unix", "status", "bootable"}
SANDBOX_FIELDS = {
    "id",
    "snapshot_tag",
    "netns",
    "guest_addr",
    "created_at_unix",
    "pid",
    "memory_limit_mib",
    "has_branched",
    "last_branch_memory_path",
    "branch_count",
}


def test_snapshots_are_listed(controller, tag):
    found = {one["tag"]: one for one in controller.list_snapshots()}
    assert found[tag].keys() >= SNAPSHOT_FIELDS
    assert (found[tag]["status"], found[tag]["bootable"]) == ("ready", True)


def test_sandboxes_live_and_die(controller, tag):
    made = controller.spawn_sandboxes(tag, n=3, memory_limit_mib=512, prewarm=True, live_fork=True)
    assert len({one["id"] for one in made}) == 3
    for one in made:
        assert one.keys() >= SANDBOX_FIELDS
        assert (one["snapshot_tag"], one["memory_limit_mib"], one["has_branched"]) == (tag, 512, False)
        assert controller.get_sandbox(one["id"])["pid"] == one["pid"]
    assert {one["id"] for one in made} <= {one["id"] for one in controller.list_sandboxes()}
    for one in made:
        assert controller.kill_sandbox(one["id"]) is None
    assert not {one["id"] for one in made} & {one["id"] for one in controller.list_sandboxes()}
    with pytest.raises(ControllerError) as refused:
        controller.get_sandbox(made[0]["id"])
    assert refused.value.status == 404


def test_commands_run(controller, tag, sandboxes):
    (sandbox,) = sandboxes(tag)
    pong = controller.ping_sandbox(sandbox)
    assert pong["pong"] is True and pong["pid"] == 1
    assert {"numpy_version", "agent_lang", "warmup_ready"} <= pong.keys()
    ran = controller.exec_command(sandbox, ["sh", "-c", "echo out; echo err >&2; exit 7"], timeout_secs=20)
    assert (ran["stdout"], ran["stderr"], ran["exit_code"]) == ("out\n", "err\n", 7)
    assert controller.exec_command(sandbox, ["sh", "-c", "kill -9 $$"])["exit_code"] == -9
    with pytest.raises(ControllerError) as refused:
        controller.exec_command(sandbox, [])
    assert refused.value.status == 400


def test_code_is_evaluated(controller, tag, sandboxes):
    (sandbox,) = sandboxes(tag)
    answer = controller.eval_code(sandbox, "numpy.zeros(5).tolist()")
    assert (answer["result"], answer["exit_code"]) == ("[0.0, 0.0, 0.0, 0.0, 0.0]", 0)
    answer = controller.eval_code(sandbox, "1 / 0")
    assert "ZeroDivisionError" in answer["error"] and answer["exit_code"] == 1


def test_a_running_sandbox_is_branched(controller, tag, sandboxes, fresh_tag):
    (source,) = sandboxes(tag)
    write, read = "echo disk {0} > /root/mark; echo memory {0} > /run/mark", ["cat", "/root/mark", "/run/mark"]
    ways = [{}, {"diff": True}, {"mode": "full"}, {"mode": "diff"}, {"mode": "live"}]
    for number, how in enumerate(ways, start=1):
        controller.eval_code(source, f"kept = {number}")
        controller.exec_command(source, ["sh", "-c", write.format(number)])
        branch = fresh_tag()
        info = controller.branch_sandbox(source, tag=branch, **how)
        assert (info["tag"], info["status"]) == (branch, "ready")
        assert info["pause_ms"] > 0 and info["branched_from"]
        (copy,) = sandboxes(branch)
        assert controller.eval_code(copy, "kept")["result"] == str(number)
        for one in (copy, source):
            assert controller.exec_command(one, read)["stdout"] == f"disk {number}\nmemory {number}\n"
        controller.kill_sandbox(copy)
        seen = controller.get_sandbox(source)
        assert (seen["has_branched"], seen["branch_count"]) == (True, number)


def test_nobody_waits_for_a_live_branch(controller, tag, sandboxes, fresh_tag):
    (source,) = sandboxes(tag)
    branch = fresh_tag()
    assert controller.branch_sandbox(source, tag=branch, mode="live", wait=False)["status"] in ("writing", "ready")
    (copy,) = sandboxes(branch)
    assert controller.ping_sandbox(copy)["pong"] is True
    until = time.monotonic() + 120
    while time.monotonic() < until:
        status = {one["tag"]: one["status"] for one in controller.list_snapshots()}[branch]
        assert status in ("writing", "ready")
        if status == "ready":
            return
        time.sleep(0.2)
    pytest.fail("it is never ready")


def test_a_tag_is_made_up_when_none_is_given(controller, tag, sandboxes):
    (source,) = sandboxes(tag)
    made = controller.branch_sandbox(source)["tag"]
    assert made.startswith(f"branch-{source}-")
    assert controller.delete_snapshot(made) is None


def test_what_is_not_there_is_said_so(controller, tag):
    nothing = "sb-0-0000"
    for call in (
        lambda: controller.get_sandbox(nothing),
        lambda: controller.kill_sandbox(nothing),
        lambda: controller.ping_sandbox(nothing),
        lambda: controller.eval_code(nothing, "1"),
        lambda: controller.exec_command(nothing, ["true"]),
        lambda: controller.branch_sandbox(nothing),
        lambda: controller.delete_snapshot("nothing-of-the-sort"),
        lambda: controller.spawn_sandboxes("nothing-of-the-sort"),
    ):
        with pytest.raises(ControllerError) as refused:
            call()
        assert refused.value.status == 404
    for n in (0, 1001):
        with pytest.raises(ControllerError) as refused:
            controller.spawn_sandboxes(tag, n=n)
        assert refused.value.status == 400
