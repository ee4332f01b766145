/* tests/unit/operators_topk, on many more arrays. */
#include "tests/support/selection_sorted.h"

int main(void)
{
	test_seed();
	selections_are_sorted(400);
	return done_testing();
}
