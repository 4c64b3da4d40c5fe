"""What runs on the GPU's own cores beside its JPEG engine, as CUDA: photos are resized, and looked through for damage.

Both are plain C++ but for a few words, and tests compile them for the host.
"""

RESIZE = r"""
// Axes: the inner one is summed first. `bits` < 0: floats, with nothing rounded between; 11: as OpenCV does it.
struct Axis { const int* first; const int* weights; long long taps, bits, stride; };

__device__ float in_floats(const unsigned char* from, const Axis& inner, const Axis& outer, int i, int o) {
    const float* wi = (const float*)inner.weights + i * inner.taps;
    const float* wo = (const float*)outer.weights + o * outer.taps;
    float total = 0;
    for (int k = 0; k < outer.taps; k++) {
        if (wo[k] == 0) continue;
        const unsigned char* line = from + (outer.first[o] + k) * outer.stride + inner.first[i] * inner.stride;
        float sum = 0;
        for (int n = 0; n < inner.taps; n++) if (wi[n] != 0) sum += wi[n] * line[n * inner.stride];
        total += wo[k] * sum;
    }
    return total;
}

__device__ int in_bytes(const unsigned char* from, const Axis& inner, const Axis& outer, int i, int o) {
    const int* wi = inner.weights + i * inner.taps;
    const int* wo = outer.weights + o * outer.taps;
    int total = 1 << (outer.bits - 1);
    for (int k = 0; k < outer.taps; k++) {
        if (wo[k] == 0) continue;
        const unsigned char* line = from + (outer.first[o] + k) * outer.stride + inner.first[i] * inner.stride;
        int sum = 1 << (inner.bits - 1);
        for (int n = 0; n < inner.taps; n++) if (wi[n] != 0) sum += wi[n] * line[n * inner.stride];
        total += wo[k] * min(max(sum >> inner.bits, 0), 255);
    }
    return min(max(total >> outer.bits, 0), 255);
}

__device__ int in_shorts(const unsigned char* from, const Axis& across, const Axis& down, int x, int y) {
    const int* wx = across.weights + x * across.taps;
    const int* wy = down.weights + y * down.taps;
    int total = 2;
    for (int k = 0; k < down.taps; k++) {
        const unsigned char* line = from + (down.first[y] + k) * down.stride + across.first[x] * across.stride;
        int sum = 0;
        for (int n = 0; n < across.taps; n++) sum += wx[n] * line[n * across.stride];
        total += (wy[k] * (sum >> 4)) >> 16;
    }
    return min(max(total >> 2, 0), 255);
}

extern "C" __global__ void resize(const long long* table, const int* words, unsigned char* out, int height, int width) {
    const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    const long long* t = table + blockIdx.z * 12LL;
    const unsigned char* from = (const unsigned char*)t[0];
    const Axis down = {words + t[2], words + t[3], t[4], t[5], t[1]};
    const Axis across = {words + t[6], words + t[7], t[8], t[9], 3};
    const bool is_down_first = t[10];
    const Axis& inner = is_down_first ? down : across;
    const Axis& outer = is_down_first ? across : down;
    const int i = is_down_first ? y : x, o = is_down_first ? x : y;
    unsigned char* to = out + ((t[11] * height + y) * width + x) * 3;
    for (int c = 0; c < 3; c++)
        to[c] = down.bits < 0 ? (unsigned char)min(max(rintf(in_floats(from + c, inner, outer, i, o)), 0.f), 255.f)
              : down.bits == 11 ? (unsigned char)in_shorts(from + c, across, down, x, y)
                                : (unsigned char)in_bytes(from + c, inner, outer, i, o);
}
"""

CHECK = r"""
// One thread reads the Huffman codes of one photo: all of its blocks must be there, and nothing else. So it finds all
// that libjpeg warns of in there, and a little more.
// A step is what a code stands for: in its lower 6 bits the length of the code and of the number that follows, and
// above them how many places of a block it fills. 0 is no code.
const int LAST_STEP = 127;  // the other places of a block are empty

__device__ int step_of(int symbol, int length, bool is_first) {
    if (is_first) return 1 << 6 | (length + symbol);
    const int run = symbol >> 4, size = symbol & 15;
    return (size == 0 && run != 15 ? LAST_STEP : run + 1) << 6 | (length + size);
}

struct Codes {
    unsigned short fast[256];  // the steps of short codes, by the next 8 bits
    int limits[17], offsets[17];
    unsigned char values[256];
    bool is_there, is_first;

    __device__ int long_step(int next) const {
        for (int length = 9; length <= 16; length++) {
            const int code = next >> (16 - length);
            if (code < limits[length]) return step_of(values[(offsets[length] + code) & 255], length, is_first);
        }
        return 0;
    }
};

struct Bits {
    const unsigned char *at, *end;
    unsigned long long buffer;
    int left, missing;  // bits in the buffer; how many zeros were put there as there was nothing more to read

    __device__ bool is_at_marker() const { return at + 1 >= end || (at[0] == 0xFF && at[1] != 0); }

    __device__ void fill() {
        while (left <= 32) {
            if (((unsigned long long)at & 3) == 0 && at + 4 < end) {
                const unsigned four = *(const unsigned*)at, inverse = ~four;
                if (!((inverse - 0x01010101u) & ~inverse & 0x80808080u)) {  // none of them is 0xFF
                    const unsigned turned = four >> 24 | (four >> 8 & 0xFF00u) | (four & 0xFF00u) << 8 | four << 24;
                    buffer = buffer << 32 | turned;
                    left += 32;
                    at += 4;
                    continue;
                }
            }
            int byte = 0;
            if (is_at_marker()) missing += 8;
            else { byte = at[0]; at += byte == 0xFF ? 2 : 1; }
            buffer = buffer << 8 | byte;
            left += 8;
        }
    }

    __device__ int step(const Codes& codes) {
        if (left < 32) fill();
        const int next = (int)(buffer >> (left - 16)) & 0xFFFF;
        int known = codes.fast[next >> 8];
        if (!known) known = codes.long_step(next);
        left -= known & 63;
        return known >> 6;
    }
};

static_assert(sizeof(Codes) == 908, "see CHECK_BYTES");

__device__ bool read_codes(const unsigned char* at, const unsigned char* end, Codes* tables) {
    while (at < end) {
        if (at + 17 > end || (at[0] & 0xEE)) return false;
        Codes& codes = tables[(at[0] >> 4) * 2 + (at[0] & 1)];
        const unsigned char *counts = at, *values = at + 17;
        int code = 0, place = 0;
        codes.is_there = true;
        codes.is_first = at[0] < 16;
        for (int i = 0; i < 256; i++) codes.fast[i] = 0;
        for (int length = 1; length <= 16; length++, code <<= 1) {
            codes.offsets[length] = place - code;
            for (int n = 0; n < counts[length]; n++, code++, place++) {
                if (place > 255 || values + place >= end || code >= (1 << length) - 1) return false;  // not all ones
                if (values[place] > 15 && codes.is_first) return false;
                codes.values[place] = values[place];
                const int step = step_of(values[place], length, codes.is_first);
                for (int i = 0; length <= 8 && i < 1 << (8 - length); i++)
                    codes.fast[(code << (8 - length)) + i] = (unsigned short)step;
            }
            codes.limits[length] = code;
        }
        at = values + place;
    }
    return true;
}

__device__ int read_quanta(const unsigned char* at, const unsigned char* end) {
    int found = 0;  // a bit for each table
    for (; at < end; at += at[0] < 16 ? 65 : 129) found |= 1 << (at[0] & 3);
    return at == end ? found : -1;
}

__device__ bool read_block(Bits& bits, const Codes& first, const Codes& others) {
    if (!bits.step(first)) return false;
    for (int place = 1; place < 64;) {
        const int step = bits.step(others);
        if (step == LAST_STEP) break;
        place += step;
        if (step == 0 || place > 64) return false;
    }
    return true;
}

__device__ bool is_at_end(const Bits& bits) {
    const int real = bits.left - bits.missing;
    return real >= 0 && real < 8 && bits.is_at_marker();
}

__device__ bool is_whole(const unsigned char* data, long long size, Codes* tables) {
    const unsigned char *at = data + 2, *end = data + size, *frame = 0;
    int interval = 0, quanta = 0;
    for (int i = 0; i < 4; i++) tables[i].is_there = false;
    for (;;) {
        if (at + 4 > end || at[0] != 0xFF) return false;
        const int marker = at[1];
        if (marker == 0xFF) { at++; continue; }
        const unsigned char *content = at + 4, *following = at + 2 + (at[2] << 8 | at[3]);
        if (following > end || following < content) return false;
        if (marker == 0xC4 && !read_codes(content, following, tables)) return false;
        if (marker == 0xDB) quanta |= read_quanta(content, following);
        if (marker == 0xC0 && content + 15 <= following) frame = content;
        if (marker == 0xDD && content + 2 <= following) interval = content[0] << 8 | content[1];
        at = following;
        if (marker == 0xDA) {
            if (!frame || content + 10 > end || content[0] != 3 || frame[5] != 3) return false;
            if (quanta < 0 || content[7] != 0 || content[8] != 63 || content[9] != 0) return false;
            int across = 1, down = 1, blocks[3], chosen[3];
            for (int c = 0; c < 3; c++) {
                const unsigned char* component = frame + 6 + 3 * c;
                const int wide = component[1] >> 4, high = component[1] & 15, both = content[2 + 2 * c];
                if (component[0] != content[1 + 2 * c] || (both & 0xEE)) return false;
                if (wide < 1 || wide > 4 || high < 1 || high > 4) return false;
                if (component[2] > 3 || !(quanta >> component[2] & 1)) return false;
                blocks[c] = wide * high;
                chosen[c] = both;
                if (!tables[both >> 4].is_there || !tables[2 + (both & 1)].is_there) return false;
                if (wide > across) across = wide;
                if (high > down) down = high;
            }
            const int height = frame[1] << 8 | frame[2], width = frame[3] << 8 | frame[4];
            const int units = ((width + 8 * across - 1) / (8 * across)) * ((height + 8 * down - 1) / (8 * down));
            Bits bits = {at, end, 0, 0, 0};
            for (int unit = 0; unit < units; unit++) {
                if (interval && unit && unit % interval == 0) {
                    if (!is_at_end(bits) || bits.at + 1 >= end) return false;
                    if (bits.at[1] != 0xD0 + (unit / interval - 1) % 8) return false;
                    const Bits next = {bits.at + 2, end, 0, 0, 0};
                    bits = next;
                }
                for (int c = 0; c < 3; c++)
                    for (int n = 0; n < blocks[c]; n++)
                        if (!read_block(bits, tables[chosen[c] >> 4], tables[2 + (chosen[c] & 1)])) return false;
                if (bits.left < bits.missing) return false;
            }
            return is_at_end(bits) && bits.at + 2 == end && bits.at[1] == 0xD9;
        }
    }
}

extern "C" __global__ void check(const unsigned char* rows, const long long* places, const long long* sizes,
                                 long long row_bytes, unsigned char* found, int photos) {
    extern __shared__ unsigned char memory[];
    const int warp = threadIdx.x / 32, photo = blockIdx.x * (blockDim.x / 32) + warp;
    if (threadIdx.x % 32 || photo >= photos) return;
    Codes* tables = (Codes*)memory + 4 * warp;  // two for the first number of a block, two for the others
    found[photo] = is_whole(rows + places[photo] * row_bytes, sizes[photo], tables);
}
"""
CHECKED_AT_ONCE = 24
"""Photos of a block of threads. One thread of each warp works, and as many photos as there is room for share a
multiprocessor: so the model, which runs meanwhile, keeps most of the others for itself."""
CHECK_BYTES = CHECKED_AT_ONCE * 4 * 908
"""Shared memory of such a block: four tables of codes for each photo."""
