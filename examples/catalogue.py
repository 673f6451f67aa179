"""A plan: read every document, summarise each, then make one index. Run it with `onceward run catalogue.py`.

Each step pretends to be a model call: it takes a moment and costs something.
"""

import time

from onceward import Plan

plan = Plan("catalogue", budget={"usd": "1.00"}, config={"model": "small"})
DOCUMENTS = ["apples", "bridges", "clouds", "dunes", "engines", "ferns"]


@plan.stage(targets=DOCUMENTS)
def read(task):
    task.spend(usd="0.05", tokens=800)  # asks first: raises if the budget has no room
    time.sleep(0.2)
    return {"title": task.target.title(), "words": len(task.target) * 100}


@plan.stage(needs=read)
async def summarise(task):
    task.spend(usd="0.02", tokens=150)
    document = task.inputs["read"]
    task.log(f"{document['title']} has {document['words']} words")
    return f"{document['title']}, in {document['words']} words."


@plan.stage(needs=summarise, targets=["all"])
def index(task):
    summaries = task.inputs["summarise"]
    (task.out / "index.md").write_text("".join(f"- {summaries[name]}\n" for name in sorted(summaries)))


if __name__ == "__main__":
    print(plan.run())
