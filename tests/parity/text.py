"""English of some three hundred tokens for the comparison on SmolLM2."""

TEXT = """\
The lighthouse on the northern cape was built in 1871, after three ships had been lost on the \
same reef within a single winter. Its first keeper, a retired carpenter, kept a diary in which \
the weather took up far more room than the people. "Wind from the west, rain until noon, two \
sails seen," he wrote on an ordinary day; on the day his daughter was born he added only that the \
lamp had needed new oil.

For forty years the light turned by clockwork. A weight sank slowly through the middle of the \
tower, and every four hours somebody had to climb the 142 steps and wind it up again. When \
electricity came to the cape, the weight stayed where it was, hanging in the dark, because nobody \
could think of a way to take it down without breaking the stairs.

Today the tower is a small museum. Visitors are told that on a clear night the beam can be seen \
from eighteen miles away, and that the glass of the lens came from France in eleven crates packed \
with straw. Children like to ask what happened to the ships. The guide, who has answered this \
question many times, points through the window at low tide: a line of black ribs in the sand, as \
regular as the teeth of a comb, is all that remains of the last of them. She was carrying \
oranges, and for weeks afterwards the beach was bright with them. Nobody on the cape, the guide \
adds, has been able to look at marmalade in quite the same way since.
"""
