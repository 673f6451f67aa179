"""What things cost, in cents."""


def total(items):
    return sum(price for price, _ in items)


def discount(cents, percent):
    return cents - cents * percent // 10
