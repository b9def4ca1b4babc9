"""A database of its own for every test, without a start and without a clean-up: `python3 example.py [TAG]`."""

import sys

from forkd import Sandbox


def sql(sandbox: Sandbox, statement: str) -> str:
    done = sandbox.commands.run(["psql", "-U", "postgres", "-qAtc", statement], timeout=120)
    return done.stdout.strip() or done.stderr.strip()


with Sandbox(sys.argv[1] if sys.argv[1:] else "postgres-fixture") as fixture:
    # What all tests begin with is made once.
    sql(fixture, "create table users (name text primary key)")
    sql(fixture, "insert into users values ('ada'), ('grace')")

    # Each test gets a server that has all of it, and may ruin it.
    first, second = fixture.fork(2)
    with first, second:
        sql(first, "drop table users")
        print(sql(first, "select count(*) from users").splitlines()[0])
        sql(second, "insert into users values ('edsger')")
        print(sql(second, "select string_agg(name, ', ' order by name) from users"))
    print(sql(fixture, "select count(*) from users"))
