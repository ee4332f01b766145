/* Two trainings that a selection which is wrong now and then ends, or spoils; tests/long/trainings has all. */
#include "tests/support/trainings.h"

int main(void)
{
	training of[] = {
		{.spec = "gtopk:density=0.03", .task = LETTERS, .optimizer = ADAM, .steps = 100, .rate = 0.002f},
		{.spec = "topk:density=0.03",
	         .task = CLASSES,
	         .optimizer = SGD,
	         .steps = 100,
	         .rate = 0.02f,
	         .momentum = 0.9f},
	};
	const int there = train_data();
	ok(there, "headers to learn from");
	for (size_t i = 0; there && i < sizeof of / sizeof of[0]; i++)
		train(&of[i], 2, 0.8);
	return done_testing();
}
