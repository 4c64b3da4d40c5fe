"""CUDA kernels that run on the cores of the GPU, beside its JPEG engine.

`check` looks for damage in photos, `colour` makes pixels from the planes that the engine gives, and `resize` resizes
them. The kernels are plain C++ but for a few words, and tests compile them for the host.
"""

COLOUR = r"""
// Pixels of planes, as libjpeg-turbo makes them to the bit: colour that was sampled more coarsely is interpolated.
const int HALF_AS_WIDE = 1;  // how coarse the colours are sampled; 0: as the light is, 2: half as wide and half as high

struct Planes {
    const unsigned char* of[3];
    long long stride, coarse_stride, width, height, sampling;
    unsigned char* out;
};

__device__ int sampled(const Planes& planes, const unsigned char* plane, int x, int y) {
    if (!planes.sampling) return plane[y * planes.coarse_stride + x];
    const int wide = (int)(planes.width + 1) / 2, column = x >> 1;
    const int beside = wide > 2 ? min(max(column + (x & 1 ? 1 : -1), 0), wide - 1) : column;
    if (planes.sampling == HALF_AS_WIDE) {
        const unsigned char* line = plane + y * planes.coarse_stride;
        return (3 * line[column] + line[beside] + 1 + (x & 1)) >> 2;
    }
    const int high = (int)(planes.height + 1) / 2, row = y >> 1;
    const unsigned char* line = plane + row * planes.coarse_stride;
    if (wide <= 2) return line[column];
    const unsigned char* next = plane + min(max(row + (y & 1 ? 1 : -1), 0), high - 1) * planes.coarse_stride;
    return (3 * (3 * line[column] + next[column]) + 3 * line[beside] + next[beside] + 8 - (x & 1)) >> 4;
}

__device__ unsigned char in_range(int value) { return (unsigned char)min(max(value, 0), 255); }

extern "C" __global__ void colour(const Planes* photos) {
    const Planes& planes = photos[blockIdx.z];
    const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= planes.width || y >= planes.height) return;
    const int light = planes.of[0][y * planes.stride + x];
    const int blue = sampled(planes, planes.of[1], x, y) - 128, red = sampled(planes, planes.of[2], x, y) - 128;
    unsigned char* to = planes.out + (y * planes.width + x) * 3;
    to[0] = in_range(light + ((91881 * red + 32768) >> 16));  // 1.402 of 65536
    to[1] = in_range(light + ((-22554 * blue - 46802 * red + 32768) >> 16));  // 0.34414, 0.71414
    to[2] = in_range(light + ((116130 * blue + 32768) >> 16));  // 1.772
}
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
// The 32 threads of a warp read the Huffman codes of one photo together: all of its blocks must be there, and nothing
// else. So they find all that libjpeg warns of in there, and a little more.
//
// What a code means depends on all codes before it. But whoever begins to read somewhere in the middle soon reads the
// same codes as one who comes from the beginning: so each lane of the warp reads a piece of the scan from a guess, and
// then again from where the lane before it ended, if that is not what it had guessed, until nothing changes. After
// each such round one more lane is certainly right; mostly all of them are after two or three.
//
// A phase of work is written as EACH_LANE { ... }. What goes from one phase to the next lies in shared memory, and a
// lane reads there only what others wrote in earlier phases: so tests can run the lanes of a phase one by one.
#ifndef EACH_LANE
#define EACH_LANE for (int lane = threadIdx.x % 32, is_new = 1; is_new; is_new = 0, __syncwarp())
#endif

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
    int limits[17];  // the next 16 bits are less than this where a code has that length, or a smaller one
    int offsets[17];
    unsigned char values[256];
    bool is_there, is_first;

    __device__ int long_step(int next) const {
        int length = 9;  // found without a branch, as some lane has a long code most of the time
        for (int tried = 9; tried <= 16; tried++) length += next >= limits[tried];
        if (length > 16) return 0;
        return step_of(values[(offsets[length] + (next >> (16 - length))) & 255], length, is_first);
    }
};

struct Bits {
    const unsigned char *at, *end, *till;
    unsigned long long buffer;
    int left;  // bits in the buffer
    int missing;  // how many zeros were put there as there was nothing more to read
    int beyond;  // how many bits of the buffer come after `till`, or are missing

    __device__ bool is_at_marker() const { return at + 1 >= end || (at[0] == 0xFF && at[1] != 0); }

    // At least 32 bits are left afterwards: no code takes more than 31, with the number that follows.
    __device__ void fill() {
        if (left >= 32) return;
        if (at + 8 <= end) {
            const unsigned* words = (const unsigned*)((unsigned long long)at & ~3ULL);
            const int turn = (int)((unsigned long long)at & 3) * 8;
            const unsigned four = (unsigned)(((unsigned long long)words[1] << 32 | words[0]) >> turn), inverse = ~four;
            if (!((inverse - 0x01010101u) & ~inverse & 0x80808080u)) {  // none of them is 0xFF
                const unsigned turned = four >> 24 | (four >> 8 & 0xFF00u) | (four & 0xFF00u) << 8 | four << 24;
                buffer = buffer << 32 | turned;
                left += 32;
                at += 4;
                if (at > till) beyond += min((int)(at - till), 4) * 8;
                return;
            }
        }
        while (left <= 32) {
            int byte = 0;
            if (is_at_marker()) missing += 8, beyond += 8;
            else {
                if (at >= till) beyond += 8;
                byte = at[0];
                at += byte == 0xFF ? 2 : 1;
            }
            buffer = buffer << 8 | byte;
            left += 8;
        }
    }

    __device__ int step(const Codes& codes) {
        fill();
        const int next = (int)(buffer >> (left - 16)) & 0xFFFF;
        int known = codes.fast[next >> 8];
        if (!known) known = codes.long_step(next);
        left -= known & 63;
        return known >> 6;
    }
};

// The piece of a lane has parts, and ends in the same state as before where one of its parts begins in the same state
// as before: so it is read again only up to there.
const int LANES = 32, MOST_PARTS = 8;
const int LEAST_BYTES = 32;  // of a part: more than what is read ahead
const int UNREAD = -1;  // no state

struct Photo {
    Codes tables[4];  // two for the first number of a block, two for the others
    const unsigned char *scan, *end;
    int interval, blocks, blocks_of_unit;
    int width, height, sampling;
    int parts;  // of each lane; 0: the photo is read by one lane
    int changed;  // the last round in which a lane read
    unsigned char choices[48];  // which tables are for a block of a unit: for its first number, and << 4 for the others
    int begins[LANES], ends[LANES];  // states at the beginning and the end of the piece of each lane
    int starts[LANES * MOST_PARTS + 1];  // the first byte of each part, and of what comes after all of them
    int assumed[LANES * MOST_PARTS];  // the state that each part was last read from
    int found[LANES * MOST_PARTS];  // how many blocks end in each; -1: damage, if it was read from the right state
};

static_assert(sizeof(Photo) == 7064, "see CHECK_BYTES");

// Its state where a part begins is a number: how many bits of the part belong to the code before, which block of a unit
// it is in, and at which place of that. 0 is the true one of the first part, and the guess for others.
struct Reader {
    Bits bits;
    int block, place, choice;
    int done;  // blocks

    __device__ Reader(const Photo& photo, int part, int state) {
        const bool is_part = part < LANES * photo.parts;
        const unsigned char* till = is_part ? photo.scan + photo.starts[part + 1] : photo.end;
        const Bits fresh = {photo.scan + photo.starts[part], photo.end, till, 0, 0, 0, 0};
        bits = fresh;
        bits.fill();
        bits.left -= state & 31;
        block = state >> 5 & 63;
        place = state >> 11;
        choice = photo.choices[block];
        done = 0;
    }

    __device__ int state() const { return (bits.beyond - bits.left) | block << 5 | place << 11; }

    // False where there is no such code, or it fills more places than the block has: then a unit begins, at a guess.
    __device__ bool read_code(const Photo& photo) {
        const int step = bits.step(photo.tables[place ? choice >> 4 : choice & 15]);
        place += step;
        if (step && place < 64) return true;
        const bool is_end = place == 64 || place > LAST_STEP;
        bits.left -= step == 0;
        block = is_end && block + 1 < photo.blocks_of_unit ? block + 1 : 0;
        choice = photo.choices[block];
        place = 0;
        done++;
        return is_end;
    }
};

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
            codes.limits[length] = code << (16 - length);
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

__device__ bool read_header(const unsigned char* data, long long size, Photo& photo) {
    const unsigned char *at = data + 2, *end = data + size, *frame = 0;
    Codes* tables = photo.tables;
    int quanta = 0;
    photo.interval = 0;
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
        if (marker == 0xDD && content + 2 <= following) photo.interval = content[0] << 8 | content[1];
        at = following;
        if (marker == 0xDA) {
            if (!frame || content + 10 > end || content[0] != 3 || frame[5] != 3) return false;
            if (quanta < 0 || content[7] != 0 || content[8] != 63 || content[9] != 0) return false;
            int across = 1, down = 1, blocks = 0, coarse_blocks = 0;
            for (int c = 0; c < 3; c++) {
                const unsigned char* component = frame + 6 + 3 * c;
                const int wide = component[1] >> 4, high = component[1] & 15, both = content[2 + 2 * c];
                if (component[0] != content[1 + 2 * c] || (both & 0xEE)) return false;
                if (wide < 1 || wide > 4 || high < 1 || high > 4) return false;
                if (component[2] > 3 || !(quanta >> component[2] & 1)) return false;
                if (!tables[both >> 4].is_there || !tables[2 + (both & 1)].is_there) return false;
                for (int n = 0; n < wide * high; n++) photo.choices[blocks++] = both >> 4 | (2 + (both & 1)) << 4;
                if (c) coarse_blocks += wide * high;
                if (wide > across) across = wide;
                if (high > down) down = high;
            }
            // Only three samplings are known to `colour`, with one block of each colour in a unit.
            if (coarse_blocks != 2 || across > 2 || down > across || blocks != 2 + across * down) return false;
            const int height = frame[1] << 8 | frame[2], width = frame[3] << 8 | frame[4];
            photo.width = width;
            photo.height = height;
            photo.sampling = across - 1 + down - 1;
            const int units = ((width + 8 * across - 1) / (8 * across)) * ((height + 8 * down - 1) / (8 * down));
            photo.scan = at;
            photo.end = end;
            photo.blocks_of_unit = blocks;
            photo.blocks = units * blocks;
            // Photos with restarts are rare: one lane reads them, and the small ones.
            const long long parts = (end - 4 - at) / (LANES * LEAST_BYTES);
            const bool has_restarts = photo.interval && photo.interval < units;
            photo.parts = has_restarts ? 0 : (int)min(parts, (long long)MOST_PARTS);
            return true;
        }
    }
}

// Read the piece of a lane from a state, as far as its parts were not read from the same one before.
__device__ void read_piece(Photo& photo, int lane, int state) {
    int part = lane * photo.parts;
    const int last = part + photo.parts - 1;
    photo.assumed[part] = state;
    Reader reader(photo, part, state);
    bool is_good = true;
    // One loop over the codes of all parts: lanes do not wait for each other at the end of a part.
    for (;;) {
        // What makes no sense is damage, or the guess was wrong: reading on makes another one.
        is_good &= reader.read_code(photo);
        const Bits& bits = reader.bits;
        if (bits.left > bits.beyond) continue;
        // A marker before the end of the scan is damage, whoever sees it.
        const bool is_there = bits.at >= bits.till;
        photo.found[part] = is_good && is_there ? reader.done : -1;
        state = is_there ? reader.state() : 0;
        if (part++ == last) break;
        if (photo.assumed[part] == state) return;
        photo.assumed[part] = state;
        reader = Reader(photo, part, state);
        is_good = true;
    }
    photo.ends[lane] = state;
}

__device__ void read_pieces(Photo& photo) {
    EACH_LANE {
        // At least the last byte of the codes is in no part: the last block of a whole photo ends in that byte, so who
        // reads parts cannot read beyond it.
        const long long bytes = photo.end - 4 - photo.scan, parts = LANES * photo.parts;
        for (int part = lane * photo.parts; part < (lane + 1) * photo.parts; part++) {
            const int start = (int)(bytes * (part + 1) / parts);
            const unsigned char* at = photo.scan + start;
            photo.starts[part + 1] = start + (at[0] == 0 && at[-1] == 0xFF);  // such a 0 belongs to the byte before
            photo.assumed[part] = UNREAD;
        }
    }
    for (int round = 1; photo.changed == round - 1; round++) {
        EACH_LANE { photo.begins[lane] = lane ? photo.ends[lane - 1] : 0; }
        EACH_LANE {
            if (photo.assumed[lane * photo.parts] != photo.begins[lane]) {
                photo.changed = round;  // whoever writes it writes the same
                read_piece(photo, lane, photo.begins[lane]);
            }
        }
    }
}

__device__ bool is_at_end(const Bits& bits) {
    const int real = bits.left - bits.missing;
    return real >= 0 && real < 8 && bits.is_at_marker();
}

// Read what comes after all parts, or the whole scan where there are none: all blocks that remain, and no more.
__device__ bool is_whole(const Photo& photo) {
    const int parts = LANES * photo.parts;
    long long done = 0;
    for (int part = 0; part < parts; part++) {
        if (photo.found[part] < 0) return false;
        done += photo.found[part];
    }
    Reader reader(photo, parts, photo.ends[LANES - 1]);
    Bits& bits = reader.bits;
    if (done > photo.blocks || (done == photo.blocks && reader.place)) return false;
    for (int unit = 0; done + reader.done < photo.blocks;) {
        if (photo.interval && !reader.place && !reader.block) {
            if (unit && unit % photo.interval == 0) {
                if (!is_at_end(bits) || bits.at + 1 >= bits.end) return false;
                if (bits.at[1] != 0xD0 + (unit / photo.interval - 1) % 8) return false;
                const Bits next = {bits.at + 2, bits.end, bits.end, 0, 0, 0, 0};
                bits = next;
            }
            unit++;
        }
        if (!reader.read_code(photo) || bits.left < bits.missing) return false;
    }
    return is_at_end(bits) && bits.at + 2 == bits.end && bits.at[1] == 0xD9;
}

extern "C" __global__ void check(const unsigned char* rows, const long long* places, const long long* sizes,
                                 long long row_bytes, int* found, int photos) {
    extern __shared__ unsigned char memory[];
    const int warp = threadIdx.x / 32, number = blockIdx.x * (blockDim.x / 32) + warp;
    if (number >= photos) return;
    Photo& photo = ((Photo*)memory)[warp];
    EACH_LANE {
        photo.ends[lane] = 0;
        if (lane == 0) {
            photo.changed = photo.parts = photo.starts[0] = 0;
            // What is found of a photo: whether it is whole, its height and width, and how its colours were sampled.
            found[4 * number] = read_header(rows + places[number] * row_bytes, sizes[number], photo);
            found[4 * number + 1] = photo.height;
            found[4 * number + 2] = photo.width;
            found[4 * number + 3] = photo.sampling;
        }
    }
    if (photo.parts) read_pieces(photo);
    EACH_LANE {
        if (lane == 0 && found[4 * number]) found[4 * number] = is_whole(photo);
    }
}
"""
CHECKED_AT_ONCE = 8
"""How many photos a block of threads checks, with one warp for each."""
CHECK_BYTES = CHECKED_AT_ONCE * 7064
"""The shared memory of such a block: one `Photo` for each photo."""
