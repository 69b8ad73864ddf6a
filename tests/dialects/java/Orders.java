import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.kafka.common.errors.SerializationException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.serialization.Deserializer;

/** What the three applications share: which orders fail, and a life that ends with the one who started it. */
final class Orders {
    private static final List<String> OURS = List.of("dlq-id", "dlq-replays", "dlq-replay");

    private Orders() {}

    /**
     * An order says where it fails (`read`, `work`) and until when (`healed`: until it is replayed, `stubborn`);
     * `bare`: the application drops headers it does not know.
     */
    static void check(String where, byte[] order, Headers headers) {
        String told = new String(order, StandardCharsets.ISO_8859_1);
        boolean isHealed = told.contains(" healed ") && headers.lastHeader("dlq-replays") != null;
        if (!told.startsWith(where) || isHealed) {
            return;
        }
        if (told.contains(" bare ")) {
            OURS.forEach(headers::remove);
        }
        if (where.equals("read")) {
            throw new SerializationException("the order cannot be read");
        }
        throw new TimeoutException("the warehouse does not answer");
    }

    /** Waits until standard input is closed. */
    static void live() throws Exception {
        while (System.in.read() != -1) {
            continue;
        }
    }

    /** Orders as bytes; those that fail at `read` fail here. */
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
