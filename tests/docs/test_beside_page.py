"""The page about task queues: its handlers hand facts over, beside psycopg 3 (``script/test --driver psycopg``)."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from django.db.backends.postgresql.psycopg_any import is_psycopg3

from tests.support.session import PROJECT
from tests.support.shop import migrated_shop
from tests.support.waiting import DEADLINE_SECONDS, wait_until

PAGE = (PROJECT / "docs" / "how-to" / "beside-celery-or-procrastinate.md").read_text()
BLOCKS = dict(re.findall(r"```python\n# ([^\n]*)\n(.*?)```", PAGE, re.S))
SETUP = "import django; django.setup()\n"
#: The handler fails after it has deferred the job, once.
FAILS_ONCE = """
import django; django.setup()
from django.core.management import call_command
from procrastinate.contrib.django.models import ProcrastinateJob
from shop.models import Order
from streams import handles
from streams.follow import Begin
from shop.tasks import send_mail

calls = []

@handles(Order, reader="careful", each=True, begin=Begin.OLDEST, retry_seconds=0.01)
def defer_and_fail(order):
    send_mail.defer(order_id=order.order_id, status="deferred again")
    calls.append(order.order_id)
    if len(calls) == 1:
        raise OSError("after the job was deferred")

call_command("runhandlers", "careful", "--once")
print(len(calls), ProcrastinateJob.objects.filter(args__status="deferred again").count())
"""


def test_blocks_are_python() -> None:
    assert [name for name in BLOCKS if name.startswith("shop/")] == [
        "shop/tasks.py", "shop/handlers.py", "shop/handlers.py with Celery", "shop/shipping.py",
    ]  # fmt: skip
    for text in BLOCKS.values():
        ast.parse(text)


def each_fact_becomes_one_job(tmp_path: Path, database_url: str) -> None:
    files = {name: BLOCKS[name] for name in ("shop/tasks.py", "shop/handlers.py", "shop/shipping.py")}
    with migrated_shop(tmp_path, database_url, "beside", files, BLOCKS["settings.py"]) as shop:
        ship = "from shop.shipping import ship\nship('4711')\nship('4711')\nship('4712')"
        shop.run("-c", SETUP + ship)
        assert "2 facts handled" in shop.run("manage.py", "runhandlers", "mails", "--once")
        assert "0 facts handled" in shop.run("manage.py", "runhandlers", "mails", "--once")
        said = shop.run("manage.py", "procrastinate", "worker", "--one-shot")
        assert sorted(re.findall(r"^mail: .*", said, re.M)) == ["mail: 4711 is shipped", "mail: 4712 is shipped"]
        # A handler that fails takes its job back: three calls, and one job for each of two facts.
        assert "\n3 2\n" in shop.run("-c", FAILS_ONCE)


#: An app of Celery whose tasks append, with folders as its broker.
CELERY = """
from pathlib import Path
from celery import Celery

folder = str(Path(__file__).parent)
Path(folder, "queue").mkdir(exist_ok=True)
app = Celery("shop", broker="filesystem://")
app.conf.broker_transport_options = {
    "data_folder_in": folder + "/queue", "data_folder_out": folder + "/queue", "control_folder": folder + "/control"
}


@app.task
def send_mail(order_id, status):
    from shop.models import Order

    Order.stream.append(order_id=order_id, status="mailed")
"""
COUNT = "from shop.models import Order\nprint(sum(one.status == 'mailed' for one in Order.stream.read().facts))"


def tasks_of_celery_append_in_its_prefork_pool(tmp_path: Path, database_url: str) -> None:
    files = {"shop/tasks.py": CELERY, "shop/handlers.py": BLOCKS["shop/handlers.py with Celery"]}
    with migrated_shop(tmp_path, database_url, "celeries", files) as shop:
        shop.run("manage.py", "runhandlers", "mails", "--once")  # begins at the present end
        append = (
            "from shop.models import Order\nfor one in range(12): Order.stream.append(order_id=str(one), status='paid')"
        )
        shop.run("-c", SETUP + append)
        assert "12 facts handled" in shop.run("manage.py", "runhandlers", "mails", "--once")
        worker = shop.start("-m", "celery", "-A", "shop.tasks", "worker", "--concurrency", "2", "-l", "WARNING")
        try:
            wait_until(lambda: shop.run("-c", SETUP + COUNT) == "12\n", 2 * DEADLINE_SECONDS)
        finally:
            worker.terminate()
            worker.wait(DEADLINE_SECONDS)
        assert "12 facts handled" in shop.run("manage.py", "runhandlers", "mails", "--once")


if is_psycopg3:  # which procrastinate requires
    test_each_fact_becomes_one_job = pytest.mark.timeout(300)(each_fact_becomes_one_job)
    test_tasks_of_celery = pytest.mark.timeout(300)(tasks_of_celery_append_in_its_prefork_pool)
