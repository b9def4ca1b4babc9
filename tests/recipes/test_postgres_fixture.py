"""PostgreSQL ran before the fork, and what one fork does to it the other never sees."""

from collections.abc import Callable

from conftest import PATIENCE_SECS, assert_warm
from forkd import Sandbox

Pair = tuple[Sandbox, Sandbox]


def sql(sandbox: Sandbox, statement: str) -> str:
    done = sandbox.commands.run(["psql", "-U", "postgres", "-qAtc", statement], timeout=PATIENCE_SECS)
    assert done.exit_code == 0, done.stderr
    return done.stdout.strip()


def test_both_have_the_server_of_their_parent(pair: Pair) -> None:
    pid = "head -n 1 /var/lib/postgresql/15/main/postmaster.pid"
    assert_warm(pair, [sandbox.commands.run(pid, timeout=PATIENCE_SECS).stdout.strip() for sandbox in pair])
    births = {sql(sandbox, "select pg_postmaster_start_time()") for sandbox in pair}
    assert len(births) == 1, births
    assert sql(pair[0], "show server_encoding") == "UTF8"


def test_forks_are_independent(pair: Pair) -> None:
    one, other = pair
    sql(one, "create table kept as select n from generate_series(1, 1000) n")
    assert sql(other, "select to_regclass('kept') is null") == "t"
    (child,) = one.fork(1)
    with child:
        sql(child, "drop table kept")
        assert sql(child, "select to_regclass('kept') is null") == "t"
        assert sql(one, "select count(*), sum(n) from kept") == "1000|500500"


def test_nothing_random_is_drawn_twice(pair: Pair) -> None:
    one, other = (sql(sandbox, "select random(), gen_random_uuid()").split("|") for sandbox in pair)
    assert one[0] != other[0] and one[1] != other[1], (one, other)


def test_the_example(example: Callable[[], None]) -> None:
    example()
