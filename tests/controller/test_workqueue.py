"""Work queue: an item that is added during its own pass."""

import asyncio

from deadletter.controller.state.workqueue import WorkQueue


async def test_an_item_added_while_it_is_processed_is_processed_once_more() -> None:
    queue: WorkQueue[str] = WorkQueue()
    processed: list[str] = []

    async def reconcile(item: str) -> None:
        processed.append(item)
        if len(processed) == 1:
            queue.add(item)
            queue.add(item)

    task = asyncio.create_task(queue.run(reconcile))
    queue.add("a")
    queue.add("a")
    async with asyncio.timeout(60):
        while len(processed) < 2:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    task.cancel()
    assert processed == ["a", "a"]
