/* The order of things within a step, on one rank, against what is written down; and the tasks
 * of a bucket. */
#include "schedule/task_list.h"
#include "schedule/bucket_order.h"
#include "tests/support/tap.h"

#include <stdlib.h>
#include <string.h>

/* Runs a step in which all gradients are there, of buckets with these numbers of stages,
 * and writes the exchanges down: "0a 1a 0b". stop: a bucket that gives up after its first. */
static void order(char *out, uint32_t n, const uint32_t *position, const uint32_t *stages, uint32_t window,
                  uint32_t lag, uint32_t stop)
{
	schedule s;
	uint32_t tensors[16], begun[16] = {0}, b;
	for (uint32_t i = 0; i < n; i++)
		tensors[i] = 1;
	out[0] = 0;
	if (schedule_make(&s, n, tensors, position, window, lag))
		return;
	for (uint32_t i = 0; i < n; i++)
		schedule_given(&s, i);
	for (int ended = 0; !ended;) {
		int moved = 0;
		while (schedule_admit(&s) != SCHEDULE_NONE)
			moved = 1;
		while (!ended && (b = schedule_compute(&s)) != SCHEDULE_NONE) {
			moved = 1;
			if (!begun[b]++)
				schedule_begun(&s, b, stages[b]);
			if (s.bucket[b].left)
				schedule_reached(&s, b, s.bucket[b].left);
			else
				ended = schedule_ended(&s, b);
		}
		if (!ended && (b = schedule_exchange(&s)) != SCHEDULE_NONE) {
			uint32_t left = s.bucket[b].left;
			snprintf(out + strlen(out), 16, "%s%u%c", *out ? " " : "", b, (char)('a' + stages[b] - left));
			schedule_exchanged(&s, b, b == stop ? 0 : left - 1);
			moved = 1;
		}
		if (!moved) {
			strcat(out, " stuck");
			break;
		}
	}
	schedule_free(&s);
}

static void one_rank(void)
{
	const uint32_t ones[] = {1, 1, 1, 1}, twos[] = {2, 2, 2, 2}, threes[] = {3, 3, 3, 3}, mixed[] = {1, 3, 1, 2};
	const uint32_t back[] = {3, 2, 1, 0}, some[] = {2, 0, 3, 1};
	char text[256];
	order(text, 4, NULL, ones, 3, 0, 9);
	is_str(text, "0a 1a 2a 3a", "one exchange each: in their order");
	order(text, 4, NULL, twos, 3, 0, 9);
	is_str(text, "0a 0b 1a 1b 2a 2b 3a 3b", "lag 0: a bucket's exchanges follow one another");
	order(text, 4, NULL, twos, 3, 1, 9);
	is_str(text, "0a 1a 0b 2a 1b 3a 2b 3b", "lag 1: the next bucket's first goes between them");
	order(text, 4, NULL, threes, 3, 1, 9);
	is_str(text, "0a 1a 0b 2a 1b 0c 3a 2b 1c 3b 2c 3c", "lag 1 and three exchanges");
	order(text, 4, NULL, threes, 2, 1, 9);
	is_str(text, "0a 1a 0b 1b 0c 2a 2b 1c 3a 3b 2c 3c", "lag 1 and a window of two: the third waits for the first");
	order(text, 4, NULL, threes, 1, 1, 9);
	is_str(text, "0a 0b 0c 1a 1b 1c 2a 2b 2c 3a 3b 3c", "a window of one is lag 0");
	order(text, 4, back, twos, 3, 0, 9);
	is_str(text, "3a 3b 2a 2b 1a 1b 0a 0b", "positions turn the order");
	order(text, 4, some, mixed, 3, 1, 9);
	is_str(text, "1a 3a 1b 0a 3b 1c 2a", "positions, a lag, and different numbers of exchanges");
	order(text, 4, NULL, threes, 3, 0, 1);
	is_str(text, "0a 0b 0c 1a 2a 2b 2c 3a 3b 3c", "a bucket that is given up has no more exchanges");
	order(text, 4, NULL, threes, 3, 1, 1);
	is_str(text, "0a 1a 0b 2a 0c 3a 2b 3b 2c 3c", "nor with a lag");
}

static void priorities(void)
{
	const uint32_t tensors[] = {1, 2, 1, 1};
	schedule s;
	if (!ok(!schedule_make(&s, 4, tensors, NULL, 2, 0), "a schedule of four buckets"))
		return;
	schedule_given(&s, 1);
	is_int(schedule_admit(&s), SCHEDULE_NONE, "nothing begins before the first bucket");
	schedule_given(&s, 0);
	schedule_given(&s, 2);
	is_int(schedule_admit(&s), 0, "the first one begins");
	is_int(schedule_admit(&s), SCHEDULE_NONE, "not one of whose tensors one is missing, nor one after it");
	schedule_given(&s, 1);
	is_int(schedule_admit(&s), 1, "the second one begins");
	is_int(schedule_admit(&s), SCHEDULE_NONE, "the window is full");
	is_int(schedule_exchange(&s), SCHEDULE_NONE, "no exchange before it is reached");
	is_int(schedule_compute(&s), 0, "the first goes to compute first");
	schedule_begun(&s, 0, 2);
	schedule_later(&s, 0);
	is_int(schedule_compute(&s), 0, "one put back is taken again");
	is_int(schedule_compute(&s), 1, "with it in hand, the next");
	is_int(schedule_compute(&s), SCHEDULE_NONE, "then none");
	schedule_begun(&s, 1, 1);
	schedule_reached(&s, 1, 1);
	is_int(schedule_exchange(&s), SCHEDULE_NONE, "the second does not go before the first");
	schedule_reached(&s, 0, 2);
	is_int(schedule_exchange(&s), 0, "the first one's exchange");
	schedule_exchanged(&s, 0, 1);
	is_int(schedule_exchange(&s), SCHEDULE_NONE, "the second waits for both of them");
	is_int(schedule_compute(&s), 0, "the first computes again");
	schedule_reached(&s, 0, 1);
	is_int(schedule_exchange(&s), 0, "the first one's second");
	schedule_exchanged(&s, 0, 0);
	is_int(schedule_exchange(&s), 1, "the second one's");
	schedule_exchanged(&s, 1, 0);
	is_int(schedule_compute(&s), 0, "both are past their last: the first is finished first");
	is_int(schedule_compute(&s), 1, "then the second");
	is_int(schedule_ended(&s, 1), 0, "the second has ended");
	is_int(schedule_admit(&s), SCHEDULE_NONE, "its room is for the fourth, and that comes after the third");
	is_int(schedule_ended(&s, 0), 0, "the first has ended");
	is_int(schedule_admit(&s), 2, "the third begins");
	schedule_restart(&s);
	is_int(schedule_compute(&s), SCHEDULE_NONE, "after a restart nothing waits");
	is_int(s.bucket[1].given, 0, "and nothing is given");
	schedule_free(&s);
}

static void stages(void)
{
	task t[MAX_TASKS];
	gradcomp_plan plan = {.nrounds = 3};
	int n = task_list_make(&plan, 0, t);
	is_int(n, 11, "three rounds: begin, three times three, finish");
	is_int(task_list_stages(t, n, 0), 3, "three stages");
	is_int(task_list_stages(t, n, 3), 2, "two after the first exchange");
	is_int(task_list_stages(t, n, n - 1), 0, "none before finish");
	n = task_list_make(&plan, 1, t);
	is_int(n, 15, "two levels: four tasks more");
	is_int(task_list_stages(t, n, 1), 3, "three stages whatever the rounds");
	is_int(task_list_stages(t, n, 5), 2, "the rounds are one");
	is_int(task_list_stages(t, n, 8), 2, "up to the last");
	is_int(task_list_stages(t, n, n - 3), 1, "then there is spread");
	plan.nrounds = 0;
	n = task_list_make(&plan, 1, t);
	is_int(task_list_stages(t, n, 1), 3, "also when they are not known yet");
	is_int(task_list_stages(t, n, 3), 1, "or when there are none");
	plan.nrounds = GRADCOMP_MAX_ROUNDS;
	is_int(task_list_make(&plan, 1, t), MAX_TASKS, "most tasks");
	is_str(task_name(TASK_ALLGATHER_LOCAL), "allgather_local", "tasks have names");
}

int main(void)
{
	one_rank();
	priorities();
	stages();
	return done_testing();
}
