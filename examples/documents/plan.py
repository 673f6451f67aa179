"""Summarise every text with a model that costs money, then make one index. Run it with `onceward run plan.py`."""

import model

from onceward import Plan

plan = Plan("documents", budget={"usd": "1.00"}, config={"title": "What these texts say"})


@plan.stage(targets={"glob": "texts/*.md"}, estimate={"usd": "0.02"})
def outline(task):
    text = (task.folder / task.target).read_text()
    answer, tokens, usd = model.ask("outline", text, key=task.idempotency_key)
    task.spend(usd=usd, tokens=tokens, settled=True)  # the money is gone: tell the budget
    return answer


@plan.stage(needs=outline, estimate={"usd": "0.01"})
def summarise(task):
    answer, tokens, usd = model.ask("summarise", task.inputs["outline"], key=task.idempotency_key)
    task.spend(usd=usd, tokens=tokens, settled=True)
    return answer


@plan.stage(collect=summarise, targets=["all"])
def index(task):
    summaries = task.inputs["summarise"]
    lines = [f"# {task.config['title']}", ""]
    for name in sorted(summaries):
        lines += [f"**{name.split('/')[-1].removesuffix('.md').title()}.** {summaries[name]}", ""]
    (task.out / "index.md").write_text("\n".join(lines))


if __name__ == "__main__":
    plan.run()
