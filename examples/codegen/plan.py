"""Write small functions with a model, check each, and ask a person before they are published.

The budget is meant to run out: the build pauses before it overspends, and goes on with more money and a person's token.
Run it with `onceward run plan.py`; what it prints tells you what to type next.
"""

import time

from onceward import Plan

plan = Plan("codegen", budget={"usd": "0.10"})

BODIES = {
    "clamp": "return max(low, min(high, value))",
    "is_palindrome": "letters = [c for c in text.lower() if c.isalnum()]\n    return letters == letters[::-1]",
    "median": "return sorted(values)[len(values) // 2]",
    "running_total": "return [sum(values[: n + 1]) for n in range(len(values))]",
    "title_case": 'return " ".join(word[:1].upper() + word[1:] for word in text.split(" "))',
}


def pretend_model(spec: str) -> str:
    """Offline, and always the same: the first line of a spec is the signature, the rest are examples that must hold."""
    time.sleep(0.3)
    signature = spec.splitlines()[0]
    return f"def {signature}:\n    {BODIES[signature.split('(')[0]]}\n"


@plan.stage(targets={"glob": "specs/*.txt"})
def write(task):
    task.spend(
        usd="0.03", tokens=400
    )  # asks first: without room for it the build pauses, and nothing is paid
    return {"code.py": pretend_model((task.folder / task.target).read_text())}


@plan.stage(needs=write)
def check(task):
    """The examples of the spec, tried on what was written."""
    code = task.inputs["write"]["code.py"]
    names: dict = {}
    exec(code, names)
    examples = (task.folder / task.target).read_text().splitlines()[1:]
    for line in filter(None, examples):
        if not eval(line, names):
            raise AssertionError(f"{task.target}: {line} does not hold")
    return {"code.py": code, "held": len(examples)}


plan.approval("agree", "Publish these functions?", collect=check, targets=["all"])


@plan.stage(needs="agree", collect=check)
def publish(task):
    checked = task.inputs["check"]
    (task.out / "functions.py").write_text(
        "\n\n".join(checked[name]["code.py"] for name in sorted(checked))
    )


if __name__ == "__main__":
    plan.run()
