// peaks: of every 16 neighbours the largest is sent, with its position; the others stay in the error
// memory. In C++17: what member functions throw becomes an error with its text, before it would
// cross the border to C.
#include <gradcomp/compressor.h>

#include <cmath>
#include <cstring>
#include <new>
#include <stdexcept>

namespace
{

constexpr uint64_t block = 16;

class peaks
{
      public:
	explicit peaks(const gradcomp_host *host) : host(host) {}

	void plan(const gradcomp_bucket &bucket, gradcomp_plan &plan) const
	{
		plan.nrounds = 1;
		plan.rounds[0].pattern = GRADCOMP_GATHERED;
		plan.rounds[0].flags = GRADCOMP_ROUND_FIXED;
		plan.rounds[0].bound = payload_bytes(bucket.numel);
	}

	// The values of all blocks, then a byte for each: where it was.
	void encode(const gradcomp_work &work, gradcomp_payload &out) const
	{
		const uint64_t n = work.bucket->numel, blocks = (n + block - 1) / block;
		auto *bytes = static_cast<unsigned char *>(out.data);

		for (uint64_t b = 0; b < blocks; b++) {
			const uint64_t at = largest(work.flat, b * block, n);
			std::memcpy(bytes + 4 * b, &work.flat[at], 4);
			bytes[4 * blocks + b] = static_cast<unsigned char>(at - b * block);
		}
		out.bytes = payload_bytes(n);
	}

	void decode(const gradcomp_work &work, const gradcomp_payload *in, uint32_t ranks) const
	{
		const uint64_t n = work.bucket->numel, blocks = (n + block - 1) / block;

		for (uint32_t w = 0; w < ranks; w++)
			check(in[w], n); // all of them, before anything changes
		if (n)
			std::memcpy(work.error_flat, work.flat, n * sizeof(float));
		for (uint64_t b = 0; b < blocks; b++)
			work.error_flat[largest(work.flat, b * block, n)] = 0;
		if (n)
			std::memset(work.flat, 0, n * sizeof(float));
		for (uint32_t w = 0; w < ranks; w++)
			for (uint64_t b = 0; b < blocks; b++) {
				const auto *bytes = static_cast<const unsigned char *>(in[w].data);
				float value;
				std::memcpy(&value, bytes + 4 * b, 4);
				work.flat[b * block + bytes[4 * blocks + b]] += value / static_cast<float>(ranks);
			}
	}

	const gradcomp_host *const host;

      private:
	static uint64_t payload_bytes(uint64_t n) { return (n + block - 1) / block * 5; }

	static uint64_t largest(const float *x, uint64_t from, uint64_t n)
	{
		uint64_t best = from;

		for (uint64_t i = from; i < n && i < from + block; i++)
			if (std::fabs(x[i]) > std::fabs(x[best]))
				best = i;
		return best;
	}

	// A peer may have sent anything.
	static void check(const gradcomp_payload &in, uint64_t n)
	{
		const uint64_t blocks = (n + block - 1) / block;
		const auto *bytes = static_cast<const unsigned char *>(in.data);

		if (in.bytes != payload_bytes(n))
			throw std::length_error("a payload of another length");
		for (uint64_t b = 0; b < blocks; b++) {
			float value;
			std::memcpy(&value, bytes + 4 * b, 4);
			if (bytes[4 * blocks + b] >= block || b * block + bytes[4 * blocks + b] >= n ||
			    !std::isfinite(value))
				throw std::out_of_range("a position outside of its block, or no number");
		}
	}
};

// The border: nothing may be thrown across it.
template <typename Work> gradcomp_status border(const gradcomp_host *host, gradcomp_error *err, Work work) noexcept
{
	try {
		work();
		return GRADCOMP_OK;
	} catch (const std::bad_alloc &) {
		return host->fail(err, GRADCOMP_ERR_NOMEM, "peaks: no memory");
	} catch (const std::logic_error &e) {
		return host->fail(err, GRADCOMP_ERR_MISMATCH, "peaks: %s", e.what());
	} catch (const std::exception &e) {
		return host->fail(err, GRADCOMP_ERR_INTERNAL, "peaks: %s", e.what());
	} catch (...) {
		return host->fail(err, GRADCOMP_ERR_INTERNAL, "peaks: something was thrown that is no std::exception");
	}
}

gradcomp_status create(const gradcomp_host *host, const gradcomp_value *, const gradcomp_layout *, void **instance,
                       gradcomp_error *err)
{
	return border(host, err, [&] { *instance = new peaks(host); });
}

void destroy(void *instance)
{
	delete static_cast<peaks *>(instance);
}

gradcomp_status plan(void *instance, const gradcomp_bucket *bucket, uint64_t, gradcomp_plan *plan, gradcomp_error *err)
{
	const auto *p = static_cast<peaks *>(instance);

	return border(p->host, err, [&] { p->plan(*bucket, *plan); });
}

gradcomp_status encode(void *instance, const gradcomp_work *work, uint32_t, gradcomp_payload *out, gradcomp_error *err)
{
	const auto *p = static_cast<peaks *>(instance);

	return border(p->host, err, [&] { p->encode(*work, *out); });
}

gradcomp_status decode(void *instance, const gradcomp_work *work, uint32_t, const gradcomp_payload *in, uint32_t n,
                       gradcomp_error *err)
{
	const auto *p = static_cast<peaks *>(instance);

	return border(p->host, err, [&] { p->decode(*work, in, n); });
}

// C++17 has no designated initialisers; a constexpr function does as well.
constexpr struct gradcomp_compressor_v1 describe()
{
	struct gradcomp_compressor_v1 c {
	};

	c.info.abi_version = GRADCOMP_ABI_VERSION;
	c.info.struct_size = sizeof c;
	c.info.name = "peaks";
	c.info.version = "1.0";
	c.info.summary = "the largest of every 16 neighbours";
	c.info.licence = "MIT";
	c.traits = GRADCOMP_TRAIT_ERROR_FEEDBACK;
	c.patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_GATHERED);
	c.create = create;
	c.destroy = destroy;
	c.plan = plan;
	c.encode = encode;
	c.decode = decode;
	return c;
}

} // namespace

extern "C" GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = describe();
