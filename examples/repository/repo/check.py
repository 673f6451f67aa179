"""What must hold."""

from prices import discount, total

assert total([(100, 2), (50, 1)]) == 250, "a price counts as often as there are items"
assert discount(1000, 20) == 800, "twenty percent off"
print("prices are right")
