import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.kafka.common.errors.SerializationException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.serialization.Deserializer;

/** Shared by the three applications: which orders fail, and waiting for the end of the parent process. */
final class Orders {
    private static final List<String> OUR_HEADERS = List.of("dlq-id", "dlq-replays", "dlq-replay");

    private Orders() {}

    /**
     * Fails if the words of the order say so: where (`read`, `work`) and until when (`temporary`: until it is
     * replayed, `permanent`: always). For `headerless` orders the application drops headers that it does not know.
     */
    static void check(String where, byte[] order, Headers headers) {
        String words = new String(order, StandardCharsets.ISO_8859_1);
        boolean isRepaired = words.contains(" temporary ") && headers.lastHeader("dlq-replays") != null;
        if (!words.startsWith(where) || isRepaired) {
            return;
        }
        if (words.contains(" headerless ")) {
            OUR_HEADERS.forEach(headers::remove);
        }
        if (where.equals("read")) {
            throw new SerializationException("the order cannot be read");
        }
        throw new TimeoutException("the warehouse does not answer");
    }

    /** Waits until standard input is closed. */
    static void waitForEndOfInput() throws Exception {
        while (System.in.read() != -1) {
            continue;
        }
    }

    /** Deserializes orders as bytes; orders with the word `read` fail here. */
    public static final class Reader implements Deserializer<byte[]> {
        @Override
        public byte[] deserialize(String topic, byte[] order) {
            return order;
        }

        @Override
        public byte[] deserialize(String topic, Headers headers, byte[] order) {
            check("read", order, headers);
            return order;
        }
    }
}
