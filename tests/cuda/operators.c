/* Every operator of the CUDA table against the portable table of the host: to the bit
 * where it is REPLICATED, else to the stated bound. */
#include "tests/cuda/device_arrays.h"

#include "tests/cuda/compare_chunks.h"
#include "tests/cuda/compare_codes.h"
#include "tests/cuda/compare_elements.h"
#include "tests/cuda/compare_launches.h"
#include "tests/cuda/compare_low_rank.h"
#include "tests/cuda/compare_selection.h"
#include "tests/cuda/compare_tensors.h"

int main(void)
{
	const char *why = "";
	gpu = device_table(&why);
	cpu = operators_cpu_variant("portable");
	if (!gpu) {
		printf("1..0 # SKIP %s\n", why);
		return 77;
	}
	test_seed();
	is_int(gpu->device, GRADCOMP_CUDA, "the table is the device's");
	is_int(gpu->struct_size, sizeof *gpu, "and whole");
	test_elements();
	test_selection();
	test_low_rank();
	test_codes();
	test_tensors();
	if (device_can_fail)
		test_launches();
	test_chunks();
	return done_testing();
}
